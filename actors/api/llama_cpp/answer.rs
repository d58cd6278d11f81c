//! Encodes an answer in llama.cpp's own form, whole or as server-sent events.

use std::time::Duration;

use axum::response::sse::Event;
use cuelight_engine::engine::TokenId;
use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, wrong_type};
use crate::api::sse::Encoder;
use crate::core::request::{FinishReason, Usage};
use crate::output::Delta;
use crate::serving::answers::{Answer, AnswerEvent, Finish};
use crate::serving::error::ApiError;

/// Encodes one answer.
pub(super) struct AnswerEncoder {
    /// The model's id.
    pub model: String,
    pub prompt_tokens: usize,
    /// Part of what the client sent is not in the prompt.
    pub is_truncated: bool,
    /// The client wants token ids with the text.
    pub returns_tokens: bool,
    /// Tokens generated so far.
    pub n_generated: usize,
    pub response_fields: ResponseFields,
}

impl AnswerEncoder {
    /// The object of a whole answer.
    pub fn whole(&self, answer: Answer) -> Value {
        match answer.finish {
            Some(finish) => self.finished(answer.text, &answer.tokens, &finish),
            None => self.part(answer.text, &answer.tokens),
        }
    }

    /// The objects for one event. None while text is held back.
    fn objects(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { token, deltas, .. } => {
                self.n_generated += 1;
                self.part_of(deltas, &[token]).into_iter().collect()
            }
            AnswerEvent::Finished { finish, deltas } => {
                let last = self.finished(String::new(), &[], &finish);
                self.part_of(deltas, &[]).into_iter().chain([last]).collect()
            }
        }
    }

    fn part_of(&self, deltas: Vec<Delta>, tokens: &[TokenId]) -> Option<Value> {
        let text: String = deltas.into_iter().filter_map(Delta::into_text).collect();
        let has_tokens = self.returns_tokens && !tokens.is_empty();
        (has_tokens || !text.is_empty()).then(|| self.part(text, tokens))
    }

    fn part(&self, text: String, tokens: &[TokenId]) -> Value {
        json!({
            "index": 0,
            "content": text,
            "tokens": if self.returns_tokens { tokens } else { &[] },
            "stop": false,
            "id_slot": -1,
            "model": self.model,
            "tokens_predicted": self.n_generated,
            "tokens_evaluated": self.prompt_tokens,
        })
    }

    fn finished(&self, text: String, tokens: &[TokenId], finish: &Finish) -> Value {
        let usage = &finish.usage;
        let (stop_type, stopping_word) = stop_type(&finish.reason);
        let mut object = self.part(text, tokens);
        object["stop"] = json!(true);
        object["stop_type"] = json!(stop_type);
        object["stopping_word"] = json!(stopping_word);
        object["tokens_predicted"] = json!(usage.completion_tokens);
        object["tokens_evaluated"] = json!(usage.prompt_tokens);
        object["tokens_cached"] = json!(usage.cached_tokens);
        object["truncated"] = json!(self.is_truncated);
        object["timings"] = timings(usage);
        self.response_fields.select(object)
    }
}

impl Encoder for AnswerEncoder {
    const BEGINS_AT_ONCE: bool = false;

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn on(&mut self, _choice: usize, event: AnswerEvent) -> Vec<Event> {
        self.objects(event).iter().map(frame).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![frame(&error.body())]
    }

    fn end(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn ping(&self) -> Event {
        Event::default().comment("ping")
    }
}

fn frame(object: &Value) -> Event {
    Event::default().data(object.to_string())
}

/// What ended the text, and the stop string if it was one.
fn stop_type(reason: &FinishReason) -> (&'static str, &str) {
    match reason {
        FinishReason::StopToken(_) => ("eos", ""),
        FinishReason::StopString(word) => ("word", word),
        FinishReason::Length | FinishReason::Cancelled => ("limit", ""),
    }
}

/// Counts and milliseconds. The prompt's tokens are those that were computed.
fn timings(usage: &Usage) -> Value {
    let prompt = Pace {
        tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        time: usage.time_to_first_token.saturating_sub(usage.queue_time),
    };
    let predicted = Pace { tokens: usage.completion_tokens, time: usage.generation_time };
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt.tokens,
        "prompt_ms": prompt.milliseconds(),
        "prompt_per_token_ms": prompt.milliseconds_per_token(),
        "prompt_per_second": prompt.tokens_per_second(),
        "predicted_n": predicted.tokens,
        "predicted_ms": predicted.milliseconds(),
        "predicted_per_token_ms": predicted.milliseconds_per_token(),
        "predicted_per_second": predicted.tokens_per_second(),
    })
}

/// Tokens and the time that they took.
struct Pace {
    tokens: usize,
    time: Duration,
}

impl Pace {
    fn milliseconds(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }

    fn milliseconds_per_token(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.milliseconds() / self.tokens as f64 }
    }

    /// 0 when no time was measured, because JSON has no infinity.
    fn tokens_per_second(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }
}

/// The fields that the client wants of a whole answer. Empty: all of them.
pub(super) struct ResponseFields(Vec<String>);

/// Most names of fields. Each one copies its value.
const MOST_FIELDS: usize = 64;

impl ResponseFields {
    /// Reads `response_fields`: names, or paths such as `timings/prompt_n`.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let path = fields.path("response_fields");
        let read_one = |name: &Value| match name.as_str() {
            Some(name) => Ok(name.to_owned()),
            None => Err(wrong_type(&path, "a list of strings", name)),
        };
        let names = fields.array("response_fields")?.map_or(&[][..], Vec::as_slice);
        if names.len() > MOST_FIELDS {
            let message = format!("`{path}` accepts at most {MOST_FIELDS} names, not {}", names.len());
            return Err(ApiError::invalid(path, message));
        }
        names.iter().map(read_one).collect::<Result<_, _>>().map(ResponseFields)
    }

    /// The wanted fields, each under its path. Those that do not exist are left out.
    fn select(&self, object: Value) -> Value {
        if self.0.is_empty() {
            return object;
        }
        let find = |name: &String| {
            let found = name.split('/').try_fold(&object, |object, key| object.get(key))?;
            Some((name.clone(), found.clone()))
        };
        Value::Object(self.0.iter().filter_map(find).collect::<Map<_, _>>())
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(returns_tokens: bool, response_fields: &[&str]) -> AnswerEncoder {
        let response_fields = ResponseFields(response_fields.iter().map(|&name| name.to_owned()).collect());
        let model = "m".to_owned();
        AnswerEncoder { model, prompt_tokens: 9, is_truncated: false, returns_tokens, n_generated: 0, response_fields }
    }

    fn end(reason: FinishReason, deltas: Vec<Delta>) -> AnswerEvent {
        let usage = Usage {
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 8,
            queue_time: Duration::from_millis(10),
            time_to_first_token: Duration::from_millis(20),
            generation_time: Duration::from_millis(400),
        };
        let finish = Finish { reason, calls_tools: false, usage, reasoning_tokens: 0 };
        AnswerEvent::Finished { finish, deltas }
    }

    fn token(text: &str) -> AnswerEvent {
        let deltas = if text.is_empty() { Vec::new() } else { vec![Delta::Text(text.to_owned())] };
        AnswerEvent::Token { token: 7, logprobs: None, deltas }
    }

    #[test]
    fn a_stream_ends_with_an_object_without_text() {
        let mut encoder = encoder(false, &[]);
        let first = encoder.objects(token("a")).pop().unwrap();
        assert_eq!(
            (&first["content"], &first["stop"], &first["tokens_predicted"]),
            (&json!("a"), &json!(false), &json!(1))
        );
        assert!(encoder.objects(token("")).is_empty());
        let last = encoder.objects(end(FinishReason::StopString("b".to_owned()), vec![Delta::Text("c".to_owned())]));
        assert_eq!((&last[0]["content"], &last[0]["stop"]), (&json!("c"), &json!(false)));
        assert_eq!((&last[1]["content"], &last[1]["stop"]), (&json!(""), &json!(true)));
        assert_eq!((&last[1]["stop_type"], &last[1]["stopping_word"]), (&json!("word"), &json!("b")));
    }

    #[test]
    fn token_ids_are_there_on_request() {
        assert_eq!(encoder(true, &[]).objects(token(""))[0]["tokens"], json!([7]));
        assert_eq!(encoder(false, &[]).objects(token("a"))[0]["tokens"], json!([]));
    }

    #[test]
    fn timings_count_what_was_computed() {
        let last = encoder(false, &[]).objects(end(FinishReason::Length, Vec::new())).pop().unwrap();
        let timings = &last["timings"];
        for (name, expected) in [
            ("cache_n", 4.0),
            ("prompt_n", 5.0),
            ("prompt_ms", 10.0),
            ("predicted_n", 8.0),
            ("predicted_per_second", 20.0),
        ] {
            assert!((timings[name].as_f64().unwrap() - expected).abs() < 1e-9, "{name}: {timings}");
        }
        assert_eq!((&last["stop_type"], &last["tokens_cached"]), (&json!("limit"), &json!(4)));
        let nothing = super::timings(&Usage::default());
        assert_eq!((&nothing["predicted_per_second"], &nothing["prompt_per_token_ms"]), (&json!(0.0), &json!(0.0)));
    }

    #[test]
    fn wanted_fields_are_found_by_path() {
        let last = encoder(false, &["stop_type", "timings/prompt_n", "timings/none", "none"]);
        let last = { last }.objects(end(FinishReason::StopToken(1), Vec::new())).pop().unwrap();
        assert_eq!(last, json!({ "stop_type": "eos", "timings/prompt_n": 5 }));
        let is_refused = |names: Value| {
            let body = json!({ "response_fields": names });
            ResponseFields::read(&Fields::of_body(&body).unwrap()).is_err()
        };
        assert!(is_refused(json!(["content", 7])) && is_refused(json!(vec!["content"; 65])));
        assert!(!is_refused(json!(vec!["content"; 64])));
    }
}
