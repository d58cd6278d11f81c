//! Prints a streamed answer: wrapped between words, with its Markdown rendered and the reasoning dimmed.

use super::answer_stream::Piece;
use super::markdown::Markdown;
use crate::cli::error::CliError;
use crate::cli::style::Style;
use crate::cli::terminal::{Terminal, print, print_styled};
use crate::cli::word_wrap::WordWrap;
use crate::core::printable::printable;

/// Prints the pieces of one answer. A pipe gets the answer as the model writes it, without its reasoning.
pub struct AnswerPrinter {
    wrap: WordWrap,
    is_terminal: bool,
    /// Whether reasoning is dimmed.
    colored: bool,
    /// `None` when text is printed as the model writes it.
    markdown: Option<Markdown>,
    is_reasoning: bool,
    has_printed: bool,
}

impl AnswerPrinter {
    /// For standard output. `markdown`: render Markdown if the terminal has styles.
    #[must_use]
    pub fn new(terminal: Terminal, markdown: bool) -> Self {
        let columns = terminal.output_columns();
        let (is_terminal, colored) = (columns.is_some(), terminal.colored);
        let renders = markdown && is_terminal && colored;
        let wrap = if renders { WordWrap::new(columns) } else { WordWrap::of_plain_text(columns) };
        let markdown = renders.then(Markdown::default);
        AnswerPrinter { wrap, is_terminal, colored, markdown, is_reasoning: false, has_printed: false }
    }

    /// Prints a piece.
    ///
    /// # Errors
    /// [`CliError`] when standard output is closed.
    pub fn push(&mut self, piece: Piece<'_>) -> Result<(), CliError> {
        if matches!(piece, Piece::Reasoning(_)) && !self.is_terminal {
            return Ok(());
        }
        self.has_printed = true;
        match piece {
            Piece::Reasoning(text) => {
                if !std::mem::replace(&mut self.is_reasoning, true) {
                    self.style(Style { faint: true, ..Style::default() });
                }
                self.wrap.push(&printable(text));
            }
            Piece::Text(text) if !self.is_terminal => return print(text),
            Piece::Text(text) => {
                self.end_reasoning();
                match &mut self.markdown {
                    Some(markdown) => markdown.push(&printable(text), &mut self.wrap),
                    None => self.wrap.push(&printable(text)),
                }
            }
        }
        print_styled(&self.wrap.take())
    }

    /// Whether there was anything to print.
    #[must_use]
    pub fn has_printed(&self) -> bool {
        self.has_printed
    }

    /// Prints what was held back.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self) -> Result<(), CliError> {
        self.end_reasoning();
        if let Some(markdown) = &mut self.markdown {
            markdown.finish(&mut self.wrap);
        }
        print_styled(&self.wrap.finish())
    }

    /// Leaves an empty line between the reasoning and the answer.
    fn end_reasoning(&mut self) {
        if std::mem::take(&mut self.is_reasoning) {
            self.style(Style::default());
            self.wrap.push("\n\n");
        }
    }

    fn style(&mut self, style: Style) {
        if self.colored {
            self.wrap.style(style);
        }
    }
}
