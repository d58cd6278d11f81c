//! Formats an error together with its chain of sources.

use std::error::Error;

/// Formats an error and its sources as one line, separated by colons.
///
/// A source whose text is already part of the line is left out.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
