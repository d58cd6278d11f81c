//! The answer to a request of a batch, and the sums of many.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The answer to a request: a line of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the answer.
    pub id: String,
    /// The id of the request.
    pub custom_id: String,
    /// What the route answered. `None`: the request was not sent, for the reason in `error`.
    pub response: Option<Response>,
    /// Why the request was not sent. An error of a route is a response.
    #[serde(default)]
    pub error: Option<Unsent>,
}

/// What a route answered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// The HTTP status.
    pub status_code: u16,
    /// The id of the request in logs.
    pub request_id: String,
    /// The answer or the error.
    pub body: Value,
}

/// Why a request was not sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Unsent {
    /// The reason for programs.
    pub code: UnsentCode,
    /// The reason in one sentence.
    pub message: String,
}

/// Why a request was not sent, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnsentCode {
    /// The time of the batch was over.
    #[serde(rename = "batch_expired")]
    Expired,
    /// The batch was cancelled.
    #[serde(rename = "batch_cancelled")]
    Cancelled,
}

impl Answer {
    /// The answer to a request that was not sent.
    #[must_use]
    pub fn unsent(custom_id: String, code: UnsentCode) -> Self {
        let message = match code {
            UnsentCode::Expired => "the batch expired before this request had an answer",
            UnsentCode::Cancelled => "the batch was cancelled before this request had an answer",
        };
        let error = Some(Unsent { code, message: message.to_owned() });
        Answer { id: new_id(), custom_id, response: None, error }
    }

    /// Whether the request succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.status_code == 200)
    }

    /// The usage of the answer.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.response.as_ref().map(|response| Usage::of(&response.body)).unwrap_or_default()
    }

    /// Why there is no answer, if the request failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let id = &self.custom_id;
        match (&self.response, &self.error) {
            (Some(Response { status_code: 200, .. }), _) => None,
            (Some(Response { status_code, body, .. }), _) => {
                let message = body.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason was given");
                Some(format!("{id:?}: {message} (status {status_code})"))
            }
            (None, Some(unsent)) => Some(format!("{id:?}: {}", unsent.message)),
            (None, None) => Some(format!("{id:?}: no reason was given")),
        }
    }
}

/// A number for an answer.
pub(super) fn new_id() -> String {
    format!("batch_req_{}", uuid::Uuid::new_v4().simple())
}

/// Tokens of answers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of prompts.
    pub input: u64,
    /// Those of them that were in the prefix cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
    /// Those of them that are reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// The usage in an answer of any protocol.
    fn of(body: &Value) -> Self {
        let usage = body.get("usage").unwrap_or(&Value::Null);
        let number = |paths: [&str; 2]| paths.iter().find_map(|path| usage.pointer(path)?.as_u64()).unwrap_or(0);
        Usage {
            input: number(["/prompt_tokens", "/input_tokens"]),
            cached: number(["/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens"]),
            output: number(["/completion_tokens", "/output_tokens"]),
            reasoning: number([
                "/completion_tokens_details/reasoning_tokens",
                "/output_tokens_details/reasoning_tokens",
            ]),
        }
    }

    fn add(&mut self, other: Usage) {
        self.input += other.input;
        self.cached += other.cached;
        self.output += other.output;
        self.reasoning += other.reasoning;
    }
}

/// How requests ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Requests that succeeded.
    pub succeeded: usize,
    /// Requests that a route refused.
    pub failed: usize,
    /// Requests that were not sent because the time was over.
    pub expired: usize,
    /// Requests that were not sent because the batch was cancelled.
    pub cancelled: usize,
    /// The tokens of all answers.
    pub usage: Usage,
}

impl Tally {
    /// Counts an answer.
    pub fn add(&mut self, answer: &Answer) {
        let count = match answer.error.as_ref().map(|error| error.code) {
            Some(UnsentCode::Expired) => &mut self.expired,
            Some(UnsentCode::Cancelled) => &mut self.cancelled,
            None if answer.is_success() => &mut self.succeeded,
            None => &mut self.failed,
        };
        *count += 1;
        self.usage.add(answer.usage());
    }

    /// The requests of two files.
    #[must_use]
    pub fn plus(mut self, other: Tally) -> Self {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
        self.usage.add(other.usage);
        self
    }

    /// Requests without an answer that is of use.
    #[must_use]
    pub fn without_success(&self) -> usize {
        self.failed + self.expired + self.cancelled
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status_code: u16, body: Value) -> Answer {
        let response = Response { status_code, request_id: "req_1".to_owned(), body };
        Answer { id: new_id(), custom_id: "a".to_owned(), response: Some(response), error: None }
    }

    #[test]
    fn usage_has_the_names_of_several_protocols() {
        let chat = json!({ "usage": { "prompt_tokens": 3, "prompt_tokens_details": { "cached_tokens": 2 } } });
        assert_eq!(answer(200, chat).usage(), Usage { input: 3, cached: 2, ..Usage::default() });
        let message = answer(200, json!({ "usage": { "input_tokens": 3, "output_tokens": 4 } }));
        assert_eq!(message.usage(), Usage { input: 3, output: 4, ..Usage::default() });
        assert_eq!(message.failure(), None);
    }

    #[test]
    fn every_answer_is_counted_once() {
        let refused = answer(400, json!({ "error": { "message": "too long" } }));
        assert_eq!(refused.failure().unwrap(), "\"a\": too long (status 400)");
        let unsent = |code| Answer::unsent("b".to_owned(), code);
        let mut tally = Tally::default();
        for answer in [answer(200, json!({})), refused, unsent(UnsentCode::Expired), unsent(UnsentCode::Cancelled)] {
            tally.add(&answer);
        }
        assert_eq!((tally.succeeded, tally.failed, tally.expired, tally.cancelled), (1, 1, 1, 1));
        assert_eq!((tally.without_success(), tally.plus(tally).failed), (3, 2));
    }

    #[test]
    fn an_unsent_request_has_the_codes_of_the_protocol() {
        let line = serde_json::to_value(Answer::unsent("b".to_owned(), UnsentCode::Expired)).unwrap();
        assert_eq!((&line["response"], &line["error"]["code"]), (&Value::Null, &json!("batch_expired")));
    }
}
