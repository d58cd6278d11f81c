//! Where an answer begins: in text, inside reasoning or in a header.

use super::format::{Channels, Format};

/// The state before the first character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    Text,
    Reasoning,
    /// A header must follow.
    Header,
    /// This header stands at the prompt's end.
    Message(String),
}

/// The state after a prompt that ends with `tail`.
pub(super) fn start(format: &Format, tail: &str) -> Start {
    if let Some(channels) = &format.channels {
        return start_of_message(channels, tail);
    }
    let Some(reasoning) = &format.reasoning else { return Start::Text };
    let answer = answer_part(format, tail);
    let open = match answer {
        // Text of the user must not count: only a marker at the very end is the template's.
        None => tail.trim_end().ends_with(reasoning.start.trim_end()),
        Some(answer) => match (answer.rfind(reasoning.start.trim_end()), answer.rfind(&reasoning.end)) {
            (Some(start), Some(end)) => start > end,
            (start, _) => start.is_some(),
        },
    };
    if open { Start::Reasoning } else { Start::Text }
}

/// Whether the last header of the prompt is complete.
fn start_of_message(channels: &Channels, tail: &str) -> Start {
    let last = tail.rsplit_once(&channels.begin).map(|(_, last)| last);
    match last.and_then(|last| last.split_once(&channels.header_end)) {
        Some((header, _)) if channels.may_be_header(header) => Start::Message(header.to_owned()),
        _ => Start::Header,
    }
}

/// What stands behind the last header of an answer.
fn answer_part<'a>(format: &Format, tail: &'a str) -> Option<&'a str> {
    let header = format.answer_header.as_str();
    (!header.is_empty()).then(|| tail.rfind(header).map(|at| &tail[at + header.len()..])).flatten()
}
