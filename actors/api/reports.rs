//! What llama.cpp's clients can ask for in addition to an answer: the progress of the prompt, and times.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::fields::Fields;
use crate::core::request::{PromptProgress, Usage};
use crate::serving::answers::{Answer, AnswerEvent};
use crate::serving::error::ApiError;
use crate::serving::options::ReportOptions;

/// Reads `return_progress` and `timings_per_token`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<ReportOptions, ApiError> {
    Ok(ReportOptions {
        progress: fields.bool("return_progress")?.unwrap_or(false),
        timings: fields.bool("timings_per_token")?.unwrap_or(false),
    })
}

/// The reports of the answers of one request, while they are written.
pub(super) struct Reports {
    options: ReportOptions,
    /// By choice.
    choices: Vec<RunningUsage>,
}

/// The tokens and times of an answer so far.
#[derive(Debug, Clone, Default)]
struct RunningUsage {
    usage: Usage,
    first_token: Option<Instant>,
}

impl Reports {
    pub fn new(options: ReportOptions, choices: usize) -> Self {
        Reports { options, choices: vec![RunningUsage::default(); choices] }
    }

    /// Takes notice of an event.
    pub fn on(&mut self, choice: usize, event: &AnswerEvent) {
        let RunningUsage { usage, first_token } = &mut self.choices[choice];
        match event {
            AnswerEvent::Progress(progress) => {
                usage.prompt_tokens = progress.done_tokens;
                usage.cached_tokens = progress.cached_tokens;
                usage.time_to_first_token = progress.elapsed;
            }
            AnswerEvent::Prompt(_) => {}
            AnswerEvent::Token { .. } | AnswerEvent::Block { .. } => {
                usage.completion_tokens += if let AnswerEvent::Block { tokens, .. } = event { tokens.len() } else { 1 };
                let now = Instant::now();
                usage.generation_time = now - *first_token.get_or_insert(now);
            }
            AnswerEvent::Finished { finish, .. } => *usage = finish.usage,
        }
    }

    /// Adds `prompt_progress` to the object that reports a part of the prompt. `None` when the client did not ask for it.
    pub fn with_progress(&self, object: impl FnOnce() -> Value, progress: &PromptProgress) -> Option<Value> {
        self.options.progress.then(|| {
            let mut object = object();
            object["prompt_progress"] = json!({
                "total": progress.prompt_tokens,
                "cache": progress.cached_tokens,
                "processed": progress.done_tokens,
                "time_ms": milliseconds(progress.elapsed),
            });
            object
        })
    }

    /// Adds `timings` to the objects of an event of one choice, when the client asked for it.
    pub fn add_timings(&self, choice: usize, objects: &mut [Value]) {
        if self.options.timings {
            let timings = timings(&self.choices[choice].usage);
            objects.iter_mut().for_each(|object| object["timings"] = timings.clone());
        }
    }
}

/// Adds `timings` to a response without streaming, when the client asked for it: those of the first answer.
pub(super) fn add_to_whole(options: ReportOptions, answers: &[Answer], response: &mut Value) {
    if let (true, Some(finish)) = (options.timings, answers.first().and_then(|answer| answer.finish.as_ref())) {
        response["timings"] = timings(&finish.usage);
    }
}

/// The `timings` of an answer: counts and milliseconds. The prompt's tokens are those that were computed.
pub(super) fn timings(usage: &Usage) -> Value {
    let prompt = Pace {
        tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        time: usage.time_to_first_token.saturating_sub(usage.queue_time),
    };
    let predicted = Pace { tokens: usage.completion_tokens, time: usage.generation_time };
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt.tokens,
        "prompt_ms": milliseconds(prompt.time),
        "prompt_per_token_ms": prompt.milliseconds_per_token(),
        "prompt_per_second": prompt.tokens_per_second(),
        "predicted_n": predicted.tokens,
        "predicted_ms": milliseconds(predicted.time),
        "predicted_per_token_ms": predicted.milliseconds_per_token(),
        "predicted_per_second": predicted.tokens_per_second(),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Tokens and the time that they took.
struct Pace {
    tokens: usize,
    time: Duration,
}

impl Pace {
    fn milliseconds_per_token(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { milliseconds(self.time) / self.tokens as f64 }
    }

    /// 0 when no time was measured, because JSON has no infinity.
    fn tokens_per_second(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> AnswerEvent {
        AnswerEvent::Token { token: 1, logprobs: None, deltas: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn times_are_those_so_far() {
        let mut reports = Reports::new(ReportOptions { progress: false, timings: true }, 1);
        let elapsed = Duration::from_millis(30);
        let progress = PromptProgress { prompt_tokens: 10, cached_tokens: 4, done_tokens: 10, elapsed };
        reports.on(0, &AnswerEvent::Progress(progress));
        reports.on(0, &token());
        tokio::time::advance(Duration::from_millis(20)).await;
        reports.on(0, &token());
        let mut objects = [json!({})];
        reports.add_timings(0, &mut objects);
        let timings = &objects[0]["timings"];
        for (name, expected) in
            [("cache_n", 4.0), ("prompt_n", 6.0), ("prompt_ms", 30.0), ("predicted_n", 2.0), ("predicted_ms", 20.0)]
        {
            assert_eq!(timings[name].as_f64(), Some(expected), "{name}: {timings}");
        }
        assert_eq!(reports.with_progress(|| json!({}), &progress), None, "the client did not ask for it");
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let nothing = timings(&Usage::default());
        assert_eq!((&nothing["predicted_per_second"], &nothing["prompt_per_token_ms"]), (&json!(0.0), &json!(0.0)));
    }
}
