//! Breaking streamed text between words at the terminal's width.

use unicode_width::UnicodeWidthChar;

/// A longer piece without a space is printed before its end, so that an answer without spaces still streams.
const LONGEST_HELD: usize = 40;

/// Text arrives in pieces of any length. A word is held back until its end is known, then printed on the line where it
/// fits. Lines between ``` fences are printed as they are: code must not be broken.
#[derive(Debug, Default)]
pub struct WordWrap {
    /// Columns of the terminal; `None` prints everything as it comes.
    width: Option<usize>,
    /// Columns printed on this line.
    column: usize,
    /// Spaces between the last printed word and `word`.
    gap: String,
    /// The word whose end has not come.
    word: String,
    is_code: bool,
}

impl WordWrap {
    /// For a terminal of this many columns.
    #[must_use]
    pub fn new(width: Option<usize>) -> Self {
        WordWrap { width: width.filter(|&width| width > 0), ..WordWrap::default() }
    }

    /// Adds a piece of text and returns what can be printed now.
    #[must_use]
    pub fn push(&mut self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let mut out = String::with_capacity(text.len() + 1);
        for c in text.chars() {
            match c {
                '\n' => self.end_line(width, &mut out),
                ' ' | '\t' => self.space(c, width, &mut out),
                c => self.letter(c, width, &mut out),
            }
        }
        out
    }

    /// Returns what was held back.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if let Some(width) = self.width {
            self.end_word(width, &mut out);
        }
        out
    }

    fn end_line(&mut self, width: usize, out: &mut String) {
        self.end_word(width, out);
        out.push('\n');
        self.gap.clear();
        self.column = 0;
    }

    fn space(&mut self, c: char, width: usize, out: &mut String) {
        self.end_word(width, out);
        self.gap.push(c);
    }

    fn letter(&mut self, c: char, width: usize, out: &mut String) {
        self.word.push(c);
        // Chinese and Japanese text may be broken after any of its wide characters.
        if c.width() == Some(2) || self.word.len() >= LONGEST_HELD {
            self.end_word(width, out);
        }
    }

    fn end_word(&mut self, width: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if self.column == 0 && self.word.starts_with("```") {
            self.is_code = !self.is_code;
        }
        let (gap, word) = (columns(&self.gap), columns(&self.word));
        let can_break = !self.gap.is_empty() || is_wide(&self.word);
        if !self.is_code && self.column > 0 && can_break && self.column + gap + word > width {
            out.push('\n');
            self.column = word;
        } else {
            out.push_str(&self.gap);
            self.column += gap + word;
        }
        out.push_str(&self.word);
        // The terminal itself breaks a word that is longer than a line.
        if self.column > width {
            self.column %= width;
        }
        self.gap.clear();
        self.word.clear();
    }
}

fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

fn is_wide(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.width() == Some(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: usize) -> String {
        let mut wrap = WordWrap::new(Some(width));
        let whole = wrap.push(text) + &wrap.finish();
        let mut wrap = WordWrap::new(Some(width));
        let pieces: String = text.chars().map(|c| wrap.push(&c.to_string())).collect();
        assert_eq!(pieces + &wrap.finish(), whole, "the result depends on how the text is split");
        whole
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("the quick brown fox", 10), "the quick\nbrown fox");
        assert_eq!(wrapped("exactly 10", 10), "exactly 10");
        assert_eq!(wrapped("one\n  two three", 9), "one\n  two\nthree");
        assert_eq!(wrapped("a b ", 9), "a b");
    }

    #[test]
    fn long_words_are_left_to_the_terminal() {
        let long = "x".repeat(95);
        assert_eq!(wrapped(&format!("a {long} b"), 20), format!("a\n{long} b"));
    }

    #[test]
    fn wide_characters_count_twice_and_may_be_parted() {
        assert_eq!(wrapped("日本語日本語", 8), "日本語日\n本語");
    }

    #[test]
    fn code_between_fences_is_printed_as_it_is() {
        let code = "```rust\nlet some_long_name = 1 + 2;\n```\n";
        assert_eq!(wrapped(&format!("{code}words that wrap"), 10), format!("{code}words that\nwrap"));
    }

    #[test]
    fn without_a_terminal_text_passes_unchanged() {
        let mut wrap = WordWrap::new(None);
        assert_eq!(wrap.push("a  b \n") + &wrap.finish(), "a  b \n");
    }
}
