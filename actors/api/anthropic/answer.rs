//! The answer to a request, and how it ended.

use serde_json::{Value, json};

use super::blocks::{Block, Blocks, Change};
use crate::core::request::FinishReason;
use crate::output::Delta;
use crate::serving::answers::{AnswerEvent, Answers, Finish};
use crate::serving::error::ApiError;

/// What is known of the answer before it is generated.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub id: String,
    pub model: String,
    pub prompt_tokens: usize,
}

impl Message {
    /// The message without content, at the start of a stream.
    pub fn empty(&self) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(self.prompt_tokens, 0, 0),
        })
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// As [`Answers::next`].
    pub async fn whole(self, mut answers: Answers) -> Result<Value, ApiError> {
        let mut message = self.empty();
        let mut content = Content { blocks: Blocks::default(), written: Vec::new() };
        while let Some(next) = answers.next().await {
            match next?.1 {
                AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => {}
                AnswerEvent::Token { deltas, .. } | AnswerEvent::Block { deltas, .. } => content.add(deltas),
                AnswerEvent::Finished { finish, deltas } => {
                    content.add(deltas);
                    for (key, value) in [
                        ("stop_reason", json!(stop_reason(&finish))),
                        ("stop_sequence", json!(stop_sequence(&finish))),
                        ("usage", usage_of(&finish)),
                    ] {
                        message[key] = value;
                    }
                }
            }
        }
        message["content"] = content.written.into_iter().filter_map(Block::json).collect();
        Ok(message)
    }
}

/// The blocks of a whole answer.
struct Content {
    blocks: Blocks,
    written: Vec<Block>,
}

impl Content {
    fn add(&mut self, deltas: Vec<Delta>) {
        for change in deltas.into_iter().flat_map(|delta| self.blocks.add(delta)) {
            match (change, self.written.last_mut()) {
                (Change::Open(block), _) => self.written.push(block),
                (Change::Append(more), Some(last)) => last.append(&more),
                (Change::Append(_), None) | (Change::Close, _) => {}
            }
        }
    }
}

/// `stop_reason`.
pub(super) fn stop_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        FinishReason::Length | FinishReason::Cancelled => "max_tokens",
        FinishReason::StopString(_) => "stop_sequence",
        FinishReason::StopToken(_) if finish.calls_tools => "tool_use",
        FinishReason::StopToken(_) => "end_turn",
    }
}

/// The stop sequence that ended the answer.
pub(super) fn stop_sequence(finish: &Finish) -> Option<&str> {
    match &finish.reason {
        FinishReason::StopString(text) => Some(text),
        _ => None,
    }
}

/// The `usage` of a finished answer.
pub(super) fn usage_of(finish: &Finish) -> Value {
    usage(finish.usage.prompt_tokens, finish.usage.cached_tokens, finish.usage.completion_tokens)
}

/// Cached tokens are not input tokens in this protocol. The cache is automatic, so no tokens are counted as written to it.
fn usage(prompt_tokens: usize, cached_tokens: usize, output_tokens: usize) -> Value {
    json!({
        "input_tokens": prompt_tokens.saturating_sub(cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::Usage;

    fn finish(reason: FinishReason, calls_tools: bool) -> Finish {
        let usage = Usage { prompt_tokens: 40, cached_tokens: 32, completion_tokens: 7, ..Usage::default() };
        Finish { reason, calls_tools, usage, reasoning_tokens: 0 }
    }

    #[test]
    fn each_end_has_its_reason() {
        let stop = FinishReason::StopString("END".into());
        for (reason, calls, expected, sequence) in [
            (FinishReason::StopToken(2), false, "end_turn", None),
            (FinishReason::StopToken(2), true, "tool_use", None),
            (FinishReason::Length, false, "max_tokens", None),
            (FinishReason::Length, true, "max_tokens", None),
            (stop, false, "stop_sequence", Some("END")),
        ] {
            let finish = finish(reason, calls);
            assert_eq!((stop_reason(&finish), stop_sequence(&finish)), (expected, sequence));
        }
    }

    #[test]
    fn cached_tokens_are_not_input_tokens() {
        let usage = usage_of(&finish(FinishReason::Length, false));
        assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(8), &json!(32)));
        assert_eq!((&usage["output_tokens"], &usage["cache_creation_input_tokens"]), (&json!(7), &json!(0)));
    }
}
