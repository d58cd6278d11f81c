//! One answer of the model as it streams: pieces for the user, and what it amounts to.

use super::prompt_bar::PromptBar;
use super::turn::{ToolCall, Turn};
use crate::cli::async_runtime;
use crate::cli::error::CliError;
use crate::core::request::{Event, FinishReason, Usage};
use crate::output::{Delta, OutputParser};
use crate::pipeline::runtime::Generation;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// The model ended it, or it reached a limit.
    Finished {
        /// Which of them.
        reason: FinishReason,
        /// Tokens and times.
        usage: Usage,
    },
    /// The user pressed Ctrl-C.
    Interrupted,
    /// The model called tools again and again.
    TooManyRounds,
}

/// What the model wrote at once, and how that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// Its message.
    pub turn: Turn,
    /// How it ended.
    pub ended: Ended,
}

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// Text of the reasoning before it.
    Reasoning(&'a str),
}

/// Passes the pieces of an answer on as they come. An answer that was cut off calls no tools: the last call may be incomplete.
///
/// # Errors
/// [`CliError`] when the generation fails, or `write` does.
pub async fn stream(
    generation: &mut Generation,
    mut parser: OutputParser,
    mut bar: PromptBar,
    mut write: impl FnMut(Piece<'_>) -> Result<(), CliError>,
) -> Result<Round, CliError> {
    let mut turn = Turn::assistant("");
    // One listener for the whole answer: a new one for each event would miss a signal between two events.
    let interrupt = async_runtime::interrupt();
    tokio::pin!(interrupt);
    loop {
        let event = tokio::select! {
            event = generation.next() => event,
            // Dropping the generation cancels it and frees its memory.
            signal = &mut interrupt => { signal?; return Ok(cut_off(turn, Ended::Interrupted)) }
        };
        if let Some(Event::Progress(progress)) = &event {
            bar.show(progress);
            continue;
        }
        bar.clear();
        let (text, end) = match event {
            Some(Event::Token { text, .. }) => (text, None),
            Some(Event::Block { tokens }) => (tokens.into_iter().map(|token| token.text).collect(), None),
            Some(Event::Finished { reason, text, usage }) => (text, Some(Ended::Finished { reason, usage })),
            Some(Event::Progress(_) | Event::Prompt { .. } | Event::Embedded { .. }) => continue,
            Some(Event::Failed(error)) => return Err(CliError::other(error)),
            None => return Err(CliError::Failed("the answer stopped before its end".to_owned())),
        };
        let mut deltas = Vec::new();
        parser.push(&text, &mut deltas);
        if end.is_some() {
            parser.finish(&mut deltas);
        }
        for delta in deltas {
            match &delta {
                Delta::Text(text) => write(Piece::Text(text))?,
                Delta::Reasoning(text) => write(Piece::Reasoning(text))?,
                Delta::ToolCallStart { .. } | Delta::ToolCallArguments { .. } => {}
            }
            add(&mut turn, delta);
        }
        match end {
            Some(ended @ Ended::Finished { reason: FinishReason::Length, .. }) => return Ok(cut_off(turn, ended)),
            Some(ended) => return Ok(Round { turn, ended }),
            None => {}
        }
    }
}

/// Adds a piece to the message.
fn add(turn: &mut Turn, delta: Delta) {
    match delta {
        Delta::Text(text) => turn.content.push_str(&text),
        Delta::Reasoning(text) => turn.reasoning.push_str(&text),
        Delta::ToolCallStart { id, name, .. } => turn.calls.push(ToolCall { id, name, arguments: String::new() }),
        Delta::ToolCallArguments { index, fragment } => {
            if let Some(call) = turn.calls.get_mut(index) {
                call.arguments.push_str(&fragment);
            }
        }
    }
}

fn cut_off(turn: Turn, ended: Ended) -> Round {
    Round { turn: Turn { calls: Vec::new(), ..turn }, ended }
}
