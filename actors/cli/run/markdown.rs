//! Renders Markdown as it streams: markers become styles of the terminal.
//!
//! A marker takes effect when it arrives, because its end may be far away. A marker that is never closed ends with its line.
//! Tables, links and HTML are printed as the model writes them.

use super::block_start::{BlockStart, block_start, is_fence_end};
use crate::cli::style::Style;
use crate::cli::word_wrap::WordWrap;

/// The state of a text that is being rendered. The result does not depend on the pieces in which the text arrives.
#[derive(Debug, Default)]
pub struct Markdown {
    place: Place,
    /// The start of a line, or equal markers, whose meaning is not known yet.
    held: String,
    /// The character before those.
    previous: Option<char>,
    /// The style of the block.
    block: Style,
    /// The style of the text within it.
    style: Style,
    /// Both together, as the terminal has it.
    shown: Style,
    /// Backticks that began the code span.
    span: Option<usize>,
    /// The character and the number of those that began the code block.
    fence: Option<(char, usize)>,
    /// The next character has no special meaning, because a backslash precedes it.
    is_escaped: bool,
}

/// Where the next character is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    LineStart,
    Text,
    /// After the opening fence of a code block, or its closing one, up to the end of the line.
    FenceLine,
    /// In a line of a code block.
    Code,
}

impl Markdown {
    /// Renders a piece of text.
    pub fn push(&mut self, text: &str, out: &mut WordWrap) {
        text.chars().for_each(|c| self.character(c, out));
    }

    /// Renders what was held back, and ends all styles.
    pub fn finish(&mut self, out: &mut WordWrap) {
        match self.fence {
            Some(_) => self.release(out),
            None if self.place == Place::LineStart => self.release_line(out),
            None => {}
        }
        self.resolve('\n', out);
        if self.is_escaped {
            self.emit('\\', out);
        }
        self.set_block(Style::default(), out);
        *self = Markdown::default();
    }

    fn character(&mut self, c: char, out: &mut WordWrap) {
        match self.place {
            Place::LineStart if self.fence.is_some() => self.code_start(c, out),
            Place::LineStart => self.line_start(c, out),
            Place::Text => self.inline(c, out),
            Place::FenceLine => self.fence_line(c, out),
            Place::Code => self.code(c, out),
        }
    }

    fn line_start(&mut self, c: char, out: &mut WordWrap) {
        self.held.push(c);
        match block_start(&self.held) {
            BlockStart::Unknown => {}
            BlockStart::Paragraph => self.release_line(out),
            BlockStart::Heading(level) => {
                self.held.clear();
                self.set_block(Style { bold: true, underlined: level == 1, ..Style::default() }, out);
                self.place = Place::Text;
            }
            BlockStart::Item => {
                let held = std::mem::take(&mut self.held);
                let bullet = |c| if matches!(c, '-' | '*' | '+') { '•' } else { c };
                held.chars().for_each(|c| self.emit(bullet(c), out));
                out.hang();
                self.place = Place::Text;
            }
            BlockStart::Quote => {
                self.held.clear();
                self.set_block(Style { faint: true, ..Style::default() }, out);
                self.emit('│', out);
                self.set_block(Style::default(), out);
            }
            BlockStart::Fence(mark, count) => {
                self.fence = Some((mark, count));
                self.begin_fence_line(out);
            }
        }
    }

    /// Prints the held start of a line that is no block.
    fn release_line(&mut self, out: &mut WordWrap) {
        self.place = Place::Text;
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.inline(c, out));
    }

    fn begin_fence_line(&mut self, out: &mut WordWrap) {
        out.keep_lines(true);
        self.set_block(Style { faint: true, ..Style::default() }, out);
        self.place = Place::FenceLine;
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.fence_line(c, out));
    }

    fn fence_line(&mut self, c: char, out: &mut WordWrap) {
        match (c, self.fence) {
            ('\n', None) => {
                out.keep_lines(false);
                self.end_line(out);
            }
            ('\n', Some(_)) => {
                self.set_block(Style { code: true, ..Style::default() }, out);
                self.emit('\n', out);
                self.place = Place::LineStart;
            }
            (c, _) => self.emit(c, out),
        }
    }

    /// A line of a code block ends the block if it is a fence of the same kind.
    fn code_start(&mut self, c: char, out: &mut WordWrap) {
        let Some((mark, count)) = self.fence else { return };
        let ends = |held: &str| is_fence_end(held, mark, count);
        if c == '\n' && ends(&self.held) == Some(true) {
            self.fence = None;
            self.begin_fence_line(out);
            return self.fence_line(c, out);
        }
        self.held.push(c);
        if c == '\n' || ends(&self.held).is_none() {
            self.place = Place::Code;
            let held = std::mem::take(&mut self.held);
            held.chars().for_each(|c| self.code(c, out));
        }
    }

    fn code(&mut self, c: char, out: &mut WordWrap) {
        self.emit(c, out);
        if c == '\n' {
            self.place = Place::LineStart;
        }
    }

    fn inline(&mut self, c: char, out: &mut WordWrap) {
        if std::mem::take(&mut self.is_escaped) {
            if !c.is_ascii_punctuation() {
                self.emit('\\', out);
            }
            if c.is_ascii_punctuation() || !is_marker(c) && c != '\n' {
                return self.emit(c, out);
            }
        }
        let is_mark = if self.span.is_some() { c == '`' } else { is_marker(c) };
        if !self.held.starts_with(c) {
            self.resolve(c, out);
        }
        match c {
            '\n' => self.end_line(out),
            '\\' if self.span.is_none() => self.is_escaped = true,
            c if is_mark => self.held.push(c),
            c => self.emit(c, out),
        }
    }

    /// Decides what the held markers mean, which depends on the character after them.
    fn resolve(&mut self, next: char, out: &mut WordWrap) {
        let Some(mark) = self.held.chars().next() else { return };
        let count = self.held.chars().count();
        let style = match (mark, count) {
            ('`', _) if self.span.is_some() || next != '\n' => self.toggle_span(count),
            ('~', 2) => self.toggle(Style { struck: true, ..Style::default() }, mark, next),
            ('*' | '_', 1) => self.toggle(Style { italic: true, ..Style::default() }, mark, next),
            ('*' | '_', 2) => self.toggle(Style { bold: true, ..Style::default() }, mark, next),
            ('*' | '_', 3) => self.toggle(Style { bold: true, italic: true, ..Style::default() }, mark, next),
            _ => None,
        };
        match style {
            Some(style) => {
                self.held.clear();
                self.set(style, out);
            }
            None => self.release(out),
        }
    }

    fn toggle_span(&mut self, count: usize) -> Option<Style> {
        match self.span {
            Some(begun) if begun != count => return None,
            Some(_) => self.span = None,
            None => self.span = Some(count),
        }
        Some(Style { code: self.span.is_some(), ..self.style })
    }

    /// The style with `change` on or off. `None` for markers that neither open nor close, as in `2 * 3` and `snake_case`.
    fn toggle(&self, change: Style, mark: char, next: char) -> Option<Style> {
        let space = |c: char| c.is_whitespace();
        let previous = self.previous.unwrap_or('\n');
        let opens = !space(next) && !previous.is_ascii_alphanumeric();
        let closes = !space(previous) && (mark != '_' || !next.is_ascii_alphanumeric());
        if self.style.has(change) {
            closes.then(|| self.style.without(change))
        } else {
            opens.then(|| self.style.with(change))
        }
    }

    /// Prints what is held as it is.
    fn release(&mut self, out: &mut WordWrap) {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.emit(c, out));
    }

    fn end_line(&mut self, out: &mut WordWrap) {
        self.span = None;
        self.set_block(Style::default(), out);
        self.emit('\n', out);
        self.place = Place::LineStart;
    }

    fn set_block(&mut self, block: Style, out: &mut WordWrap) {
        self.block = block;
        self.set(Style::default(), out);
    }

    fn set(&mut self, style: Style, out: &mut WordWrap) {
        self.style = style;
        let wanted = self.block.with(style);
        if self.shown != wanted {
            self.shown = wanted;
            out.style(wanted);
        }
    }

    fn emit(&mut self, c: char, out: &mut WordWrap) {
        self.previous = Some(c);
        out.character(c);
    }
}

fn is_marker(c: char) -> bool {
    matches!(c, '*' | '_' | '`' | '~')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rendered text, with the styles as `<b>`, `<i>` and so on, and `<>` for none.
    fn rendered(text: &str, width: usize) -> String {
        let render = |pieces: &[String]| {
            let (mut markdown, mut wrap) = (Markdown::default(), WordWrap::new(Some(width)));
            pieces.iter().for_each(|piece| markdown.push(piece, &mut wrap));
            markdown.finish(&mut wrap);
            wrap.finish()
        };
        let whole = render(&[text.to_owned()]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(render(&characters), whole, "the result depends on how the text is split");
        let names = [("0", ""), ("0;1", "b"), ("0;3", "i"), ("0;1;3", "bi"), ("0;36", "c"), ("0;9", "s"), ("0;2", "f")];
        let names = names.iter().chain(&[("0;1;4", "bu"), ("0;1;36", "bc")]);
        names.fold(whole, |text, (code, name)| text.replace(&format!("\x1b[{code}m"), &format!("<{name}>")))
    }

    #[test]
    fn markers_become_styles() {
        let text = "a **bold** and *slanted*, ***both***, `x * y`, ~~gone~~ and __bold__ _too_.\n";
        let expected = "a <b>bold<> and <i>slanted<>, <bi>both<>, <c>x * y<>, <s>gone<> and <b>bold<> <i>too<>.\n";
        assert_eq!(rendered(text, 200), expected);
        assert_eq!(rendered("**a `b` c**", 80), "<b>a <bc>b<b> c<>");
        assert_eq!(rendered("这是**重点**吗", 80), "这是<b>重点<>吗");
    }

    #[test]
    fn signs_that_are_no_markers_stay() {
        for text in
            ["2 * 3 ** 4 = x", "snake_case_name", "5*3 and x**2", "a ~ b", "****", "| a | b |", "[a](b)", "--x", "#tag"]
        {
            assert_eq!(rendered(text, 80), text);
        }
        assert_eq!(rendered(r"\*not\* a\b \\ end\", 80), r"*not* a\b \ end\");
        for text in ["*", "-", "#", "12.", "`", "~~", "> ", "  "] {
            assert_eq!(rendered(text, 80), text.replace('>', "<f>│<>").trim_end());
        }
    }

    #[test]
    fn a_marker_without_an_end_ends_with_its_line() {
        assert_eq!(rendered("a **b\nc `d\ne", 80), "a <b>b<>\nc <c>d<>\ne");
    }

    #[test]
    fn headings_lists_and_quotes() {
        assert_eq!(rendered("# One\n## Two **x**\ntext", 80), "<bu>One<>\n<b>Two x<>\ntext");
        assert_eq!(rendered("- a\n  * b\n12. c\n-d", 80), "• a\n  • b\n12. c\n-d");
        assert_eq!(rendered("> said **so**\n\nend", 80), "<f>│<> said <b>so<>\n\nend");
    }

    #[test]
    fn items_that_are_wrapped_are_indented() {
        assert_eq!(rendered("- one two three\nfour five six", 10), "• one two\n  three\nfour five\nsix");
        assert_eq!(rendered("1. aaa **bbb ccc**", 9), "1. aaa\n   <b>bbb\n   ccc<>");
    }

    #[test]
    fn code_blocks_keep_their_lines_and_signs() {
        let text = "see:\n```rust\nlet a = *b; // `x` and **y** which is long\n\n  ``\n```\n**end**";
        let code = "let a = *b; // `x` and **y** which is long\n\n  ``\n";
        assert_eq!(rendered(text, 20), format!("see:\n<f>```rust<c>\n{code}<f>```<>\n<b>end<>"));
        assert_eq!(rendered("~~~~\n~~~\n~~~~\nx", 20), "<f>~~~~<c>\n~~~\n<f>~~~~<>\nx");
        assert_eq!(rendered("```\ncut off", 20), "<f>```<c>\ncut off<>");
    }
}
