//! Breaking streamed text between words at the terminal's width.

use unicode_width::UnicodeWidthChar;

use super::style::Style;

/// A longer piece without a space is printed before its end, so that an answer without spaces still streams.
const LONGEST_HELD: usize = 40;

/// Most columns by which the lines after the first one of a list item are indented.
const MOST_INDENTATION: usize = 16;

/// Text arrives in pieces of any length. A word is held back until its end is known, then printed on the line where it
/// fits.
#[derive(Debug, Default)]
pub struct WordWrap {
    /// Columns of the terminal; `None` prints everything as it comes.
    width: Option<usize>,
    /// What can be printed now.
    out: String,
    /// Columns printed on this line.
    column: usize,
    /// Columns before the words of the next line, if this one is broken.
    indentation: usize,
    /// Spaces between the last printed word and `word`.
    gap: String,
    /// The word whose end has not come, with control sequences of styles.
    word: String,
    /// Columns of `word`.
    word_columns: usize,
    /// Lines are not broken, because they are code.
    keeps_lines: bool,
    /// Whether lines that begin with ``` begin and end code.
    finds_code: bool,
}

impl WordWrap {
    /// For a terminal of this many columns.
    #[must_use]
    pub fn new(width: Option<usize>) -> Self {
        WordWrap { width: width.filter(|&width| width > 0), ..WordWrap::default() }
    }

    /// The same for text that is printed as the model writes it. Lines between ``` fences are code.
    #[must_use]
    pub fn of_plain_text(width: Option<usize>) -> Self {
        WordWrap { finds_code: true, ..WordWrap::new(width) }
    }

    /// Adds a piece of text.
    pub fn push(&mut self, text: &str) {
        match self.width {
            None => self.out.push_str(text),
            Some(_) => text.chars().for_each(|c| self.character(c)),
        }
    }

    /// Adds a character.
    pub fn character(&mut self, c: char) {
        let Some(width) = self.width else { return self.out.push(c) };
        match c {
            '\n' => self.end_line(width),
            ' ' | '\t' => {
                self.end_word(width);
                self.gap.push(c);
            }
            c => self.letter(c, width),
        }
    }

    /// Changes the style of what follows.
    pub fn style(&mut self, style: Style) {
        self.word.push_str(&style.sequence());
    }

    /// Whether lines are printed as they are from now on: code must not be broken.
    pub fn keep_lines(&mut self, keeps_lines: bool) {
        self.keeps_lines = keeps_lines;
    }

    /// Indents the following lines of this paragraph up to here.
    pub fn hang(&mut self) {
        let here = self.column + columns(&self.gap) + self.word_columns;
        self.indentation = here.min(MOST_INDENTATION);
    }

    /// Takes what can be printed now.
    #[must_use]
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// Takes everything, including what was held back.
    #[must_use]
    pub fn finish(&mut self) -> String {
        if let Some(width) = self.width {
            self.end_word(width);
        }
        self.take()
    }

    fn end_line(&mut self, width: usize) {
        self.end_word(width);
        self.out.push('\n');
        self.gap.clear();
        (self.column, self.indentation) = (0, 0);
    }

    fn letter(&mut self, c: char, width: usize) {
        self.word.push(c);
        self.word_columns += c.width().unwrap_or(0);
        // Chinese and Japanese text may be broken after any of its wide characters.
        if c.width() == Some(2) || self.word.len() >= LONGEST_HELD {
            self.end_word(width);
        }
    }

    fn end_word(&mut self, width: usize) {
        let word = std::mem::take(&mut self.word);
        let word_columns = std::mem::take(&mut self.word_columns);
        if word_columns == 0 {
            return self.out.push_str(&word);
        }
        if self.finds_code && self.column == 0 && word.starts_with("```") {
            self.keeps_lines = !self.keeps_lines;
        }
        let gap = columns(&self.gap);
        let can_break = !self.keeps_lines && (!self.gap.is_empty() || is_wide(&word));
        if can_break && self.column > self.indentation && self.column + gap + word_columns > width {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', self.indentation));
            self.column = self.indentation + word_columns;
        } else {
            self.out.push_str(&self.gap);
            self.column += gap + word_columns;
        }
        self.out.push_str(&word);
        // The terminal itself breaks a word that is longer than a line.
        if self.column > width {
            self.column %= width;
        }
        self.gap.clear();
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
        wrap.push(text);
        let whole = wrap.finish();
        let mut wrap = WordWrap::new(Some(width));
        let mut pieces = String::new();
        for c in text.chars() {
            wrap.push(&c.to_string());
            pieces += &wrap.take();
        }
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
    fn lines_of_code_are_kept() {
        let code = "```rust\nlet some_long_name = 1 + 2;\n```\n";
        let mut wrap = WordWrap::of_plain_text(Some(10));
        wrap.push(&format!("{code}words that wrap"));
        assert_eq!(wrap.finish(), format!("{code}words that\nwrap"));
    }

    #[test]
    fn styles_have_no_width() {
        let mut wrap = WordWrap::new(Some(10));
        wrap.push("exactly ");
        wrap.style(Style { bold: true, ..Style::default() });
        wrap.push("10");
        wrap.style(Style::default());
        assert_eq!(wrap.finish(), "exactly \x1b[0;1m10\x1b[0m");
    }

    #[test]
    fn without_a_terminal_text_passes_unchanged() {
        let mut wrap = WordWrap::new(None);
        wrap.push("a  b \n");
        assert_eq!(wrap.finish(), "a  b \n");
    }
}
