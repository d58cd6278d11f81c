//! Prints a streamed answer: wrapped between words, with the reasoning dimmed.

use super::session::Piece;
use super::word_wrap::WordWrap;
use crate::cli::error::CliError;
use crate::cli::terminal::{Terminal, print};

/// Prints the pieces of one answer.
pub struct AnswerPrinter {
    terminal: Terminal,
    wrap: WordWrap,
    /// Reasoning is shown on a terminal only, so that a pipe gets the answer alone.
    shows_reasoning: bool,
    is_reasoning: bool,
}

impl AnswerPrinter {
    /// For standard output.
    #[must_use]
    pub fn new(terminal: Terminal) -> Self {
        let columns = terminal.output_columns();
        let shows_reasoning = columns.is_some();
        AnswerPrinter { terminal, wrap: WordWrap::new(columns), shows_reasoning, is_reasoning: false }
    }

    /// Prints a piece.
    ///
    /// # Errors
    /// [`CliError`] when standard output is closed.
    pub fn push(&mut self, piece: Piece<'_>) -> Result<(), CliError> {
        match piece {
            Piece::Reasoning(_) if !self.shows_reasoning => Ok(()),
            Piece::Reasoning(text) => {
                self.is_reasoning = true;
                let text = self.wrap.push(text);
                print(&self.terminal.dim(&text))
            }
            Piece::Text(text) => {
                self.end_reasoning()?;
                print(&self.wrap.push(text))
            }
        }
    }

    /// Prints what was held back.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self) -> Result<(), CliError> {
        self.end_reasoning()?;
        print(&self.wrap.finish())
    }

    /// Leaves an empty line between the reasoning and the answer.
    fn end_reasoning(&mut self) -> Result<(), CliError> {
        if !std::mem::take(&mut self.is_reasoning) {
            return Ok(());
        }
        let rest = self.wrap.push("\n\n");
        print(&self.terminal.dim(&rest))
    }
}
