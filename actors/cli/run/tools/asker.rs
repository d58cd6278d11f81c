//! Asks the user whether a call may run.

use std::io::{self, IsTerminal};

use rustyline::error::ReadlineError;
use rustyline::history::{DefaultHistory, History};
use rustyline::{Behavior, Editor, Helper};

use crate::cli::error::CliError;

/// What is asked after a call was shown.
const QUESTION: &str = "Run it? [y]es, [n]o, [a]lways this tool: ";

/// What the user says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Run this call.
    Yes,
    /// Do not run it, and tell the model.
    No,
    /// Run it, and all later calls of the tool.
    Always,
    /// End the question: Ctrl-C or Ctrl-D.
    Stop,
}

/// What can ask.
pub trait Asks {
    /// Asks until there is a reply.
    ///
    /// # Errors
    /// [`CliError`] when the terminal cannot be read.
    fn ask(&mut self) -> Result<Reply, CliError>;
}

impl<H: Helper, I: History> Asks for Editor<H, I> {
    fn ask(&mut self) -> Result<Reply, CliError> {
        loop {
            match self.readline(QUESTION) {
                Ok(line) => {
                    if let Some(reply) = reply(&line) {
                        return Ok(reply);
                    }
                }
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(Reply::Stop),
                Err(error) => return Err(CliError::other(error)),
            }
        }
    }
}

/// An editor on the terminal itself, because standard output has only the answer. `None` without a terminal.
///
/// # Errors
/// [`CliError`] when the terminal cannot be used.
pub fn terminal_asker() -> Result<Option<Editor<(), DefaultHistory>>, CliError> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(None);
    }
    let config = rustyline::Config::builder().auto_add_history(false).behavior(Behavior::PreferTerm).build();
    Editor::with_config(config).map(Some).map_err(CliError::other)
}

fn reply(line: &str) -> Option<Reply> {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Some(Reply::Yes),
        "n" | "no" => Some(Reply::No),
        "a" | "always" => Some(Reply::Always),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_reply_counts() {
        for (line, expected) in [
            ("y", Some(Reply::Yes)),
            (" Yes ", Some(Reply::Yes)),
            ("n", Some(Reply::No)),
            ("ALWAYS", Some(Reply::Always)),
            ("", None),
            ("maybe", None),
        ] {
            assert_eq!(reply(line), expected, "{line:?}");
        }
    }
}
