//! Tab completion of the chat's commands.

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::command::{COMMANDS, SETTABLE, SHOWABLE};

/// Completes commands, the names after `/set` and `/show`, and the files after `/save`, `/load`, `/image` and `/audio`.
pub struct ChatHelper {
    files: FilenameCompleter,
}

impl ChatHelper {
    /// A helper for the line editor.
    #[must_use]
    pub fn new() -> Self {
        ChatHelper { files: FilenameCompleter::new() }
    }
}

impl Helper for ChatHelper {}
impl Highlighter for ChatHelper {}
impl Validator for ChatHelper {}
impl Hinter for ChatHelper {
    type Hint = String;
}

impl Completer for ChatHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        if ["/save ", "/load ", "/image ", "/audio "].iter().any(|command| before.starts_with(command)) {
            return self.files.complete_path(line, position);
        }
        let (start, words) = candidates(before);
        let pair = |word: &str| Pair { display: word.to_owned(), replacement: format!("{word} ") };
        Ok((start, words.into_iter().map(pair).collect()))
    }
}

/// Where the word before the cursor begins, and the words that it may become.
fn candidates(before: &str) -> (usize, Vec<&'static str>) {
    let start = before.rfind(' ').map_or(0, |space| space + 1);
    let (command, word) = before.split_at(start);
    let known: &[&str] = match command {
        "" => COMMANDS,
        "/set " => SETTABLE,
        "/show " => SHOWABLE,
        _ => &[],
    };
    // A line that is not a command is a message: Tab completes nothing in it.
    let is_command = before.starts_with('/');
    (start, known.iter().copied().filter(|name| is_command && name.starts_with(word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_arguments_are_completed() {
        assert_eq!(candidates("/cl"), (0, vec!["/clear"]));
        assert_eq!(candidates("/sh"), (0, vec!["/show"]));
        assert_eq!(candidates("/set top"), (5, vec!["top_k", "top_p"]));
        assert_eq!(candidates("/show li"), (6, vec!["license"]));
        assert_eq!(candidates("/").1, COMMANDS);
    }

    #[test]
    fn messages_are_not_completed() {
        assert_eq!(candidates("").1, Vec::<&str>::new());
        assert_eq!(candidates("hello").1, Vec::<&str>::new());
        assert_eq!(candidates("/clear x").1, Vec::<&str>::new());
    }
}
