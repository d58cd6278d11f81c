//! The events of a streamed transcript, and the usage of its answers.

use serde_json::{Value, json};

use crate::serving::answers::Finish;

/// The usage of answers.
pub(super) fn usage<'a>(finishes: impl IntoIterator<Item = &'a Finish>) -> Value {
    let (mut input, mut output) = (0, 0);
    for Finish { usage, .. } in finishes {
        input += usage.prompt_tokens;
        output += usage.completion_tokens;
    }
    json!({ "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": input + output })
}

/// The event of more words.
pub(super) fn delta(text: &str) -> Value {
    json!({ "type": "transcript.text.delta", "delta": text })
}

/// The event of the end.
pub(super) fn done(text: &str, usage: &Value) -> Value {
    json!({ "type": "transcript.text.done", "text": text, "usage": usage })
}
