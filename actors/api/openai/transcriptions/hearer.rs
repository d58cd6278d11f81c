//! Asks a model what is said in a window: at temperature 0, and at higher ones while the text is not usable (temperature fallback).
//! Then, if that is wanted, when its words are spoken.

use std::slice;
use std::sync::Arc;

use tokio::time::sleep;

use super::asked::Asked;
use crate::api::request_memory::RequestMemory;
use crate::api::server::SharedServer;
use crate::core::shared_limit::Client;
use crate::serving::accept::accept;
use crate::serving::answers::{Answer, Finish};
use crate::serving::error::ApiError;
use crate::serving::request::{ConstraintField, OutputOptions, PromptInput, ServingRequest};
use crate::serving::served::Served;
use crate::serving::transcription::aligner::{AlignmentRequest, token_starts};
use crate::serving::transcription::heard::Heard;
use crate::serving::transcription::marks::Marks;
use crate::serving::transcription::quality::TEMPERATURES;
use crate::serving::transcription::recording::Window;
use crate::serving::transcription::word_times;

/// The seed of fallbacks, so that a recording has the same transcript each time.
const SEED: u64 = 0;

/// What is needed to hear a window.
pub(super) struct Hearer {
    pub server: SharedServer,
    pub client: Client,
    pub asked: Asked,
    pub constraint: ConstraintField,
    pub marks: Arc<Marks>,
}

/// What a model has heard in a window.
pub(super) struct HeardWindow {
    /// Where the window starts, in seconds.
    pub start: f64,
    /// Its times are those of the recording.
    pub heard: Heard,
    /// Of the answer that is kept.
    pub finish: Option<Finish>,
}

/// What a model has heard in a window, or why it has not.
pub(super) type OfWindow = Result<HeardWindow, ApiError>;

impl Hearer {
    /// What is heard in a window: the first usable answer, or else the last. Silence has no text.
    ///
    /// # Errors
    /// What fails a generation. While the server has no room, only the first attempt at the first window fails; all others wait.
    pub async fn hear(&self, window: &Window, is_first: bool) -> OfWindow {
        let temperatures = self.temperatures();
        let mut found = self.hear_at(temperatures[0], window, is_first).await?;
        for &temperature in &temperatures[1..] {
            if !found.heard.quality.needs_fallback() {
                break;
            }
            found = self.hear_at(temperature, window, false).await?;
        }
        if found.heard.quality.is_silence() {
            // Its language is a guess, too.
            found.heard = Heard { quality: found.heard.quality, ..Heard::default() };
        }
        if self.asked.granularity.words && !found.heard.segments.is_empty() {
            self.time_words(&mut found.heard, window).await?;
        }
        Ok(found)
    }

    /// Finds out when the words of a window are spoken.
    async fn time_words(&self, heard: &mut Heard, window: &Window) -> Result<(), ApiError> {
        let starts = with_room(false, || self.token_starts(heard, window)).await?;
        let starts: Vec<f64> = starts.into_iter().map(|seconds| window.start + seconds).collect();
        let served = Served::lease(&self.server.models, self.asked.model.as_deref()).await?;
        word_times::set(heard, &starts, &served.model()?.tokenizer);
        Ok(())
    }

    async fn token_starts(&self, heard: &Heard, window: &Window) -> Result<Vec<f64>, ApiError> {
        let options = &self.asked.options;
        let request = AlignmentRequest {
            model: self.asked.model.clone(),
            window: window.clone().request(&self.asked.request),
            seconds: window.seconds,
            before: self.marks.before_words_of(heard.language.as_deref(), self.asked.request.task),
            words: heard.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect(),
            tenancy: options.tenancy.clone(),
            priority: options.priority,
        };
        let memory = RequestMemory::reserve(&self.server.request_memory, self.client.clone());
        token_starts(&self.server.models, self.server.limits(), request, memory).await
    }

    /// At least one. A client that states one, other than 0, gets no other.
    fn temperatures(&self) -> &[f32] {
        let stated = &self.asked.options.sampling.temperature;
        if *stated > 0.0 { slice::from_ref(stated) } else { &TEMPERATURES }
    }

    async fn hear_at(&self, temperature: f32, window: &Window, may_be_refused: bool) -> OfWindow {
        with_room(may_be_refused, || self.try_to_hear(temperature, window.clone())).await
    }

    async fn try_to_hear(&self, temperature: f32, window: Window) -> OfWindow {
        let (start, seconds) = (window.start, window.seconds);
        let memory = RequestMemory::reserve(&self.server.request_memory, self.client.clone());
        let request = self.request(temperature, window);
        let accepted = accept(&self.server.models, self.server.limits(), request, memory).await?;
        if let Some(media) = accepted.model.media.as_ref().filter(|_| temperature > self.temperatures()[0]) {
            media.metrics().transcription_fallback();
        }
        let tokenizer = accepted.model.tokenizer.clone();
        let answer: Answer = accepted.answers.collect().await?.pop().ok_or(ApiError::Internal)?;
        let mut heard = Heard::read(&answer, seconds, &self.marks, &tokenizer);
        heard.quality.temperature = temperature;
        for segment in &mut heard.segments {
            segment.start += start;
            segment.end += start;
        }
        Ok(HeardWindow { start, heard, finish: answer.finish })
    }

    fn request(&self, temperature: f32, window: Window) -> ServingRequest {
        let mut options = self.asked.options.clone();
        options.stream = None;
        options.stated.temperature = Some(temperature);
        options.sampling.temperature = temperature;
        if self.asked.options.sampling.temperature <= 0.0 {
            options.sampling.seed.get_or_insert(SEED);
        }
        options.logprobs = Some(0);
        options.logprob_tokens = self.marks.no_speech().into_iter().collect();
        if self.asked.format.has_times() {
            options.sampling.joint_tokens = Some(self.marks.joint_tokens());
        }
        ServingRequest {
            model: self.asked.model.clone(),
            options,
            prompt: PromptInput::Transcription(Box::new(window.request(&self.asked.request))),
            constraint: Some(self.constraint.clone()),
            output: OutputOptions::plain(),
        }
    }
}

/// Repeats an attempt while the server has no room for it, unless it may be refused.
async fn with_room<T, Attempt: Future<Output = Result<T, ApiError>>>(
    may_be_refused: bool,
    attempt: impl Fn() -> Attempt,
) -> Result<T, ApiError> {
    loop {
        match attempt().await {
            Err(error) if !may_be_refused && error.is_overload() => {
                sleep(error.retry_after().unwrap_or_default()).await;
            }
            found => return found,
        }
    }
}
