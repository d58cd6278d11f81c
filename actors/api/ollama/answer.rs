//! Encodes an answer: the objects of a stream, or the one object of a whole answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::api::openai::logprobs::{self, Spelling};
use crate::core::request::{FinishReason, PositionLogprobs};
use crate::output::Delta;
use crate::serving::answers::{Answer, AnswerEvent, Finish, ToolCall};

/// Where the text of an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In `message`.
    Chat,
    /// In `response`.
    Generate,
}

/// Part of an answer, or all of it.
#[derive(Debug, Default, PartialEq)]
struct Piece {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Option<Value>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        *self == Piece::default()
    }
}

/// Encodes the events of one answer.
pub(super) struct Encoder {
    pub form: Form,
    /// The name of the model, as the client wrote it.
    pub model: String,
    pub tokenizer: Arc<Tokenizer>,
    /// When the request arrived.
    pub started: Instant,
    /// How long it took to have the model and the prompt's tokens.
    pub load_time: Duration,
    /// The call whose arguments are incomplete. Calls are sent whole.
    pub open: Option<OpenCall>,
}

/// A call that is being generated.
pub(super) struct OpenCall {
    index: usize,
    call: ToolCall,
}

impl Encoder {
    /// The objects for one event. None while text is held back.
    pub fn on(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { logprobs, deltas, .. } => {
                let piece = self.piece(deltas, logprobs.as_slice());
                if piece.is_empty() { Vec::new() } else { vec![self.object(piece)] }
            }
            AnswerEvent::Block { deltas, .. } => {
                let piece = self.piece(deltas, &[]);
                if piece.is_empty() { Vec::new() } else { vec![self.object(piece)] }
            }
            AnswerEvent::Finished { finish, deltas } => {
                let mut piece = self.piece(deltas, &[]);
                piece.calls.extend(self.close_call());
                let rest = (!piece.is_empty()).then(|| self.object(piece));
                rest.into_iter().chain([self.finished(Piece::default(), &finish)]).collect()
            }
        }
    }

    /// The object of a whole answer.
    pub fn whole(&self, answer: Answer) -> Value {
        let calls = answer.calls.iter().enumerate().filter_map(|(index, call)| call_json(index, call)).collect();
        let logprobs = self.logprobs(&answer.logprobs);
        let piece = Piece { text: answer.text, thinking: answer.reasoning, calls, logprobs };
        match &answer.finish {
            Some(finish) => self.finished(piece, finish),
            None => self.object(piece),
        }
    }

    fn piece(&mut self, deltas: Vec<Delta>, logprobs: &[PositionLogprobs]) -> Piece {
        let mut piece = Piece { logprobs: self.logprobs(logprobs), ..Piece::default() };
        for delta in deltas {
            match delta {
                Delta::ToolCallArguments { fragment, .. } => {
                    self.open.iter_mut().for_each(|open| open.call.arguments.push_str(&fragment));
                    continue;
                }
                _ => piece.calls.extend(self.close_call()),
            }
            match delta {
                Delta::Text(text) => piece.text.push_str(&text),
                Delta::Reasoning(text) => piece.thinking.push_str(&text),
                Delta::ToolCallStart { index, id, name } => {
                    self.open = Some(OpenCall { index, call: ToolCall { id, name, arguments: String::new() } });
                }
                Delta::ToolCallArguments { .. } => {}
            }
        }
        piece
    }

    fn close_call(&mut self) -> Option<Value> {
        let OpenCall { index, call } = self.open.take()?;
        call_json(index, &call)
    }

    fn logprobs(&self, positions: &[PositionLogprobs]) -> Option<Value> {
        let spelling = Spelling { tokenizer: &self.tokenizer, as_ids: false };
        (!positions.is_empty()).then(|| logprobs::chat(positions, spelling)["content"].take())
    }

    fn object(&self, piece: Piece) -> Value {
        let mut object = empty(self.form, &self.model);
        let (at, text) = match self.form {
            Form::Chat => (&mut object["message"], "content"),
            Form::Generate => (&mut object, "response"),
        };
        at[text] = json!(piece.text);
        if !piece.thinking.is_empty() {
            at["thinking"] = json!(piece.thinking);
        }
        if !piece.calls.is_empty() {
            at["tool_calls"] = Value::Array(piece.calls);
        }
        if let Some(logprobs) = piece.logprobs {
            object["logprobs"] = logprobs;
        }
        object
    }

    fn finished(&self, piece: Piece, finish: &Finish) -> Value {
        let mut object = self.object(piece);
        let usage = &finish.usage;
        object["done"] = json!(true);
        object["done_reason"] = json!(done_reason(&finish.reason));
        object["total_duration"] = nanoseconds(self.started.elapsed());
        object["load_duration"] = nanoseconds(self.load_time);
        object["prompt_eval_count"] = json!(usage.prompt_tokens);
        object["prompt_eval_duration"] = nanoseconds(usage.time_to_first_token.saturating_sub(usage.queue_time));
        object["eval_count"] = json!(usage.completion_tokens);
        object["eval_duration"] = nanoseconds(usage.generation_time);
        object
    }
}

/// An object without text.
pub(super) fn empty(form: Form, model: &str) -> Value {
    let mut object = json!({ "model": model, "created_at": jiff::Timestamp::now().to_string(), "done": false });
    match form {
        Form::Chat => object["message"] = json!({ "role": "assistant", "content": "" }),
        Form::Generate => object["response"] = json!(""),
    }
    object
}

fn done_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Cancelled => "length",
        FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
    }
}

/// A call with its arguments as an object. `None` when the answer ended before they were complete.
fn call_json(index: usize, call: &ToolCall) -> Option<Value> {
    let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
    Some(json!({ "id": call.id, "function": { "index": index, "name": call.name, "arguments": arguments } }))
}

fn nanoseconds(time: Duration) -> Value {
    json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::Usage;
    use crate::pipeline::simulation::tokenizer;

    fn encoder(form: Form) -> Encoder {
        let load_time = Duration::from_nanos(7);
        Encoder { form, model: "m".to_owned(), tokenizer: tokenizer(), started: Instant::now(), load_time, open: None }
    }

    fn token(deltas: Vec<Delta>) -> AnswerEvent {
        AnswerEvent::Token { token: 0, logprobs: None, deltas }
    }

    fn start(index: usize, name: &str) -> Delta {
        Delta::ToolCallStart { index, id: format!("id{index}"), name: name.to_owned() }
    }

    fn arguments(index: usize, fragment: &str) -> Delta {
        Delta::ToolCallArguments { index, fragment: fragment.to_owned() }
    }

    fn end(reason: FinishReason) -> AnswerEvent {
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 5,
            queue_time: Duration::from_nanos(10),
            time_to_first_token: Duration::from_nanos(30),
            generation_time: Duration::from_nanos(40),
            ..Usage::default()
        };
        let finish = Finish { reason, calls_tools: true, usage, reasoning_tokens: 0 };
        AnswerEvent::Finished { finish, deltas: Vec::new() }
    }

    #[test]
    fn each_call_is_sent_once_it_is_whole() {
        let mut encoder = encoder(Form::Chat);
        let call = |index: usize, name: &str, x: u64| json!([{ "id": format!("id{index}"), "function": { "index": index, "name": name, "arguments": { "x": x } } }]);
        assert!(encoder.on(token(vec![start(0, "f"), arguments(0, "{\"x\"")])).is_empty());
        let first = encoder.on(token(vec![arguments(0, ": 1}"), start(1, "g"), arguments(1, "{\"x\": 2}")]));
        assert_eq!(first.len(), 1);
        assert_eq!(first[0]["message"]["tool_calls"], call(0, "f", 1));
        let second = encoder.on(token(vec![Delta::Text("done".to_owned())]));
        assert_eq!(second[0]["message"]["tool_calls"], call(1, "g", 2));
        assert_eq!(second[0]["message"]["content"], "done");
        let last = encoder.on(end(FinishReason::StopToken(0)));
        assert_eq!((last.len(), &last[0]["done_reason"]), (1, &json!("stop")));
    }

    #[test]
    fn a_call_that_ends_with_the_answer_comes_before_the_end() {
        for (fragment, objects) in [("{}", 2), ("{\"x\"", 1)] {
            let mut encoder = encoder(Form::Chat);
            assert!(encoder.on(token(vec![start(0, "f"), arguments(0, fragment)])).is_empty());
            let last = encoder.on(end(FinishReason::Length));
            assert_eq!(last.len(), objects, "{fragment}");
            assert_eq!(last.last().unwrap()["done"], true);
        }
    }

    #[test]
    fn the_end_has_counts_and_nanoseconds() {
        let last = encoder(Form::Generate).on(end(FinishReason::Length)).pop().unwrap();
        for (name, expected) in [
            ("prompt_eval_count", 3),
            ("eval_count", 5),
            ("load_duration", 7),
            ("prompt_eval_duration", 20),
            ("eval_duration", 40),
        ] {
            assert_eq!(last[name], expected, "{name}");
        }
        assert_eq!((&last["response"], &last["done_reason"]), (&json!(""), &json!("length")));
    }

    #[test]
    fn text_and_reasoning_stand_where_the_protocol_has_them() {
        let deltas = || vec![Delta::Reasoning("hm".to_owned()), Delta::Text("a".to_owned())];
        let chat = encoder(Form::Chat).on(token(deltas())).pop().unwrap();
        assert_eq!(chat["message"], json!({ "role": "assistant", "content": "a", "thinking": "hm" }));
        let generated = encoder(Form::Generate).on(token(deltas())).pop().unwrap();
        assert_eq!((&generated["response"], &generated["thinking"]), (&json!("a"), &json!("hm")));
        assert!(encoder(Form::Chat).on(token(Vec::new())).is_empty());
    }
}
