//! What the start of a line of Markdown means.

/// A block that a line begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockStart {
    /// The next character decides.
    Unknown,
    /// Ordinary text.
    Paragraph,
    /// A heading of a level from 1.
    Heading(usize),
    /// An item of a list.
    Item,
    /// A quotation. What follows may begin another block.
    Quote,
    /// A code block, with the character of its fence and the number of those.
    Fence(char, usize),
}

/// Most spaces of indentation that are held back.
const MOST_INDENTATION: usize = 16;

/// What a line begins, as far as its first characters tell.
#[must_use]
pub fn block_start(line: &str) -> BlockStart {
    let text = line.trim_start_matches(' ');
    let count = text.chars().count();
    let (first, last) = (text.chars().next(), text.chars().next_back());
    let is_run = |mark: char| text.chars().all(|c| c == mark);
    let marker = text.trim_end_matches(' ');
    match first {
        None if line.len() < MOST_INDENTATION => BlockStart::Unknown,
        Some('#') if is_run('#') && count <= 6 => BlockStart::Unknown,
        Some('#') if last == Some(' ') => BlockStart::Heading(count - 1),
        Some(mark @ ('`' | '~')) if is_run(mark) => BlockStart::Unknown,
        Some(mark @ ('`' | '~')) if count > 3 => BlockStart::Fence(mark, count - 1),
        Some('>') if count == 1 => BlockStart::Quote,
        Some('-' | '*' | '+') if count == 1 => BlockStart::Unknown,
        Some('-' | '*' | '+') if marker.len() == 1 => BlockStart::Item,
        Some('0'..='9') if is_number_start(text) => BlockStart::Unknown,
        Some('0'..='9') if is_number_start(marker) && marker.len() < text.len() && marker.ends_with(['.', ')']) => {
            BlockStart::Item
        }
        _ => BlockStart::Paragraph,
    }
}

/// Up to three digits, perhaps with a full stop or a parenthesis after them.
fn is_number_start(text: &str) -> bool {
    let digits = text.strip_suffix(['.', ')']).unwrap_or(text);
    (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a line of a code block is the fence that ends it. `None` when it cannot become one.
#[must_use]
pub fn is_fence_end(line: &str, mark: char, count: usize) -> Option<bool> {
    let text = line.trim_start_matches(' ');
    let marks = text.trim_end_matches(' ');
    let is_possible =
        line.len() - text.len() < 4 && marks.chars().all(|c| c == mark) && (!marks.is_empty() || text.is_empty());
    is_possible.then(|| marks.chars().count() >= count)
}
