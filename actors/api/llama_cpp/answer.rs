//! Encodes an answer in llama.cpp's own form, whole or as server-sent events.

use axum::response::sse::Event;
use cuelight_engine::engine::TokenId;
use serde_json::{Value, json};

use super::options;
use super::probabilities::Probabilities;
use super::response_fields::ResponseFields;
use crate::api::reports::{Reports, timings};
use crate::api::sse::Encoder;
use crate::core::request::{FinishReason, PositionLogprobs};
use crate::output::Delta;
use crate::serving::answers::{Answer, AnswerEvent, Finish};
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;
use crate::serving::prompt::PromptTokens;

/// Encodes the answers to the prompts of one request.
pub(super) struct AnswerEncoder {
    /// The model's id.
    pub model: String,
    pub options: GenerationOptions,
    pub response_fields: ResponseFields,
    pub probabilities: Probabilities,
    pub reports: Reports,
    /// One for each prompt.
    pub choices: Vec<ChoiceState>,
}

/// The answer to one prompt so far.
pub(super) struct ChoiceState {
    prompt_tokens: usize,
    /// Part of what the client sent is not in the prompt.
    is_truncated: bool,
    /// Tokens generated so far.
    n_generated: usize,
}

impl ChoiceState {
    /// Before the answer to `prompt`.
    pub fn new(prompt: &PromptTokens) -> Self {
        ChoiceState { prompt_tokens: prompt.tokens.len(), is_truncated: prompt.files_left_out > 0, n_generated: 0 }
    }
}

/// What one token adds to an answer, or all of them.
#[derive(Default)]
struct Output<'a> {
    text: String,
    tokens: &'a [TokenId],
    logprobs: &'a [PositionLogprobs],
}

impl AnswerEncoder {
    /// The whole answers: the object of the only one, or a list.
    pub fn whole(&self, answers: Vec<Answer>) -> Value {
        let mut objects: Vec<_> =
            answers.into_iter().enumerate().map(|(index, one)| self.whole_one(index, one)).collect();
        match (objects.pop(), objects.is_empty()) {
            (Some(only), true) => only,
            (last, _) => objects.into_iter().chain(last).collect(),
        }
    }

    fn whole_one(&self, index: usize, answer: Answer) -> Value {
        let output = Output { text: answer.text, tokens: &answer.tokens, logprobs: &answer.logprobs };
        match answer.finish {
            Some(finish) => self.finished(index, output, &finish),
            None => self.part(index, output),
        }
    }

    /// The objects for one event. None while text is held back.
    fn objects(&mut self, index: usize, event: AnswerEvent) -> Vec<Value> {
        self.reports.on(index, &event);
        let mut objects = self.objects_of(index, event);
        self.reports.add_timings(index, &mut objects);
        objects
    }

    fn objects_of(&mut self, index: usize, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Progress(progress) => {
                let object = || self.part(index, Output::default());
                self.reports.with_progress(object, &progress).into_iter().collect()
            }
            AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { token, logprobs, deltas } => {
                self.choices[index].n_generated += 1;
                let (tokens, logprobs) = ([token], Vec::from_iter(logprobs));
                let output = Output { text: text_of(deltas), tokens: &tokens, logprobs: &logprobs };
                self.part_of(index, output).into_iter().collect()
            }
            AnswerEvent::Block { tokens, deltas } => {
                self.choices[index].n_generated += tokens.len();
                let output = Output { text: text_of(deltas), tokens: &tokens, logprobs: &[] };
                self.part_of(index, output).into_iter().collect()
            }
            AnswerEvent::Finished { finish, deltas } => {
                let last = self.finished(index, Output::default(), &finish);
                let held = Output { text: text_of(deltas), ..Output::default() };
                self.part_of(index, held).into_iter().chain([last]).collect()
            }
        }
    }

    fn part_of(&self, index: usize, output: Output<'_>) -> Option<Value> {
        let has_tokens = self.options.return_token_ids && !output.tokens.is_empty();
        let has_more = has_tokens || !output.logprobs.is_empty();
        (has_more || !output.text.is_empty()).then(|| self.part(index, output))
    }

    fn part(&self, index: usize, output: Output<'_>) -> Value {
        let choice = &self.choices[index];
        let mut object = json!({
            "index": index,
            "content": output.text,
            "tokens": if self.options.return_token_ids { output.tokens } else { &[] },
            "stop": false,
            "id_slot": -1,
            "model": self.model,
            "tokens_predicted": choice.n_generated,
            "tokens_evaluated": choice.prompt_tokens,
        });
        if !output.logprobs.is_empty() {
            object["completion_probabilities"] = self.probabilities.of(output.logprobs);
        }
        object
    }

    fn finished(&self, index: usize, output: Output<'_>, finish: &Finish) -> Value {
        let usage = &finish.usage;
        let (stop_type, stopping_word) = stop_type(&finish.reason);
        let mut object = self.part(index, output);
        object["stop"] = json!(true);
        object["stop_type"] = json!(stop_type);
        object["stopping_word"] = json!(stopping_word);
        object["tokens_predicted"] = json!(usage.completion_tokens);
        object["tokens_evaluated"] = json!(usage.prompt_tokens);
        object["tokens_cached"] = json!(usage.cached_tokens);
        object["truncated"] = json!(self.choices[index].is_truncated);
        object["generation_settings"] = options::params(&self.options);
        object["timings"] = timings(usage);
        self.response_fields.select(object)
    }
}

fn text_of(deltas: Vec<Delta>) -> String {
    deltas.into_iter().filter_map(Delta::into_text).collect()
}

impl Encoder for AnswerEncoder {
    const BEGINS_AT_ONCE: bool = false;

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Event> {
        self.objects(choice, event).iter().map(frame).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![frame(&error.body())]
    }

    fn end(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn ping(&mut self) -> Event {
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::request::Usage;
    use crate::pipeline::simulation::tokenizer;
    use crate::serving::options::ReportOptions;
    use crate::serving::tenancy::Tenancy;

    fn encoder(returns_tokens: bool) -> AnswerEncoder {
        let options =
            GenerationOptions { return_token_ids: returns_tokens, ..GenerationOptions::new(Tenancy::default()) };
        let choice = || ChoiceState { prompt_tokens: 9, is_truncated: false, n_generated: 0 };
        AnswerEncoder {
            model: "m".to_owned(),
            options,
            response_fields: ResponseFields::default(),
            probabilities: Probabilities { tokenizer: tokenizer() },
            reports: Reports::new(ReportOptions::default(), 2),
            choices: vec![choice(), choice()],
        }
    }

    fn end(reason: FinishReason, deltas: Vec<Delta>) -> AnswerEvent {
        let usage = Usage {
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 8,
            queue_time: Duration::from_millis(10),
            time_to_first_token: Duration::from_millis(20),
            generation_time: Duration::from_millis(400),
            ..Usage::default()
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
        let mut encoder = encoder(false);
        let first = encoder.objects(0, token("a")).pop().unwrap();
        assert_eq!(
            (&first["content"], &first["stop"], &first["tokens_predicted"]),
            (&json!("a"), &json!(false), &json!(1))
        );
        assert!(encoder.objects(0, token("")).is_empty());
        let last = encoder.objects(0, end(FinishReason::StopString("b".to_owned()), vec![Delta::Text("c".to_owned())]));
        assert_eq!((&last[0]["content"], &last[0]["stop"]), (&json!("c"), &json!(false)));
        assert_eq!((&last[1]["content"], &last[1]["stop"]), (&json!(""), &json!(true)));
        assert_eq!((&last[1]["stop_type"], &last[1]["stopping_word"]), (&json!("word"), &json!("b")));
    }

    #[test]
    fn token_ids_are_there_on_request() {
        assert_eq!(encoder(true).objects(0, token(""))[0]["tokens"], json!([7]));
        assert_eq!(encoder(false).objects(0, token("a"))[0]["tokens"], json!([]));
    }

    #[test]
    fn timings_count_what_was_computed() {
        let last = encoder(false).objects(0, end(FinishReason::Length, Vec::new())).pop().unwrap();
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
    }

    #[test]
    fn each_answer_counts_its_own_tokens() {
        let mut encoder = encoder(false);
        let counts = [0, 1, 1].map(|index| encoder.objects(index, token("a")).pop().unwrap());
        let counts = counts.map(|part| (part["index"].clone(), part["tokens_predicted"].clone()));
        assert_eq!(counts, [(json!(0), json!(1)), (json!(1), json!(1)), (json!(1), json!(2))]);
    }

    #[test]
    fn one_answer_is_an_object_and_several_are_a_list() {
        let answer = |text: &str| Answer { text: text.to_owned(), ..Answer::default() };
        assert_eq!(encoder(false).whole(vec![answer("a")])["content"], "a");
        let both = encoder(false).whole(vec![answer("a"), answer("b")]);
        assert_eq!(
            (&both[0]["content"], &both[1]["content"], &both[1]["index"]),
            (&json!("a"), &json!("b"), &json!(1))
        );
    }
}
