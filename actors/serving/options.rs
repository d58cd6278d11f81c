//! How to generate: the options of a request that all protocols share.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::TokenId;

use super::tenancy::Tenancy;
use crate::core::kv_transfer::KvTransfer;
use crate::core::prompt_media::PromptMedia;
use crate::core::request::{
    GenerationRequest, PartialSampling, SamplingParams, SpeculationOptions, StopConditions, SubmitError,
};
use crate::core::stop_strings::StopStrings;

/// How to generate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationOptions {
    /// Answers to each prompt.
    pub n: usize,
    /// Answers generated for each prompt, of which the `n` most likely are returned.
    pub best_of: usize,
    /// The client's limit. `None`: the rest of the context.
    pub max_tokens: Option<usize>,
    /// What is not in `stated` is a default of the protocol.
    pub sampling: SamplingParams,
    /// The parameters that the client states.
    pub stated: PartialSampling,
    /// Texts that never appear in an answer.
    pub bad_words: Vec<String>,
    /// When to stop; its `max_tokens` is set when the prompt's length is known.
    pub stop: StopConditions,
    /// Alternatives with each generated token.
    pub logprobs: Option<usize>,
    /// These alternatives instead of the most likely ones. Empty: the most likely ones.
    pub logprob_tokens: Vec<TokenId>,
    /// Alternatives with each token of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// The most tokens of a prompt that are kept, from its end. `None`: a prompt that does not fit the context is refused.
    pub most_prompt_tokens: Option<usize>,
    pub skip_special_tokens: bool,
    pub priority: i32,
    /// The caller.
    pub tenancy: Tenancy,
    /// The client's time limit. `None`: the server's limit.
    pub timeout: Option<Duration>,
    /// Return the token ids of prompt and answer with the text.
    pub return_token_ids: bool,
    /// Write tokens as `token_id:123` in log-probabilities.
    pub tokens_as_ids: bool,
    /// The options of a stream. `None`: one response at the end.
    pub stream: Option<StreamOptions>,
    pub reports: ReportOptions,
    pub speculation: SpeculationFields,
    /// The adapter by its number. `None`: the one that the request names as its model.
    pub adapter: Option<AdapterChoice>,
    /// What the request has to do with the KV caches of other servers.
    pub kv_transfer: KvTransfer,
}

/// An adapter by its number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdapterChoice {
    pub id: usize,
    /// The factor on its changes, instead of the one that it was loaded with.
    pub scale: f32,
}

/// How several tokens of an answer are computed in a step. The text does not depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SpeculationFields {
    /// One token per step.
    pub is_off: bool,
    /// The answer that the client expects, or a text of which the answer contains large parts.
    pub prediction: String,
}

/// What a client wants to know in addition to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReportOptions {
    /// How much of the prompt is computed. Only in a stream.
    pub progress: bool,
    /// The times of the answer, in a stream with every token.
    pub timings: bool,
}

/// What a stream contains in addition to text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StreamOptions {
    /// One last chunk with the usage.
    pub include_usage: bool,
    /// The usage so far with every chunk.
    pub continuous_usage: bool,
}

impl GenerationOptions {
    /// One answer of any length, sampled from the unmodified distribution.
    pub fn new(tenancy: Tenancy) -> Self {
        GenerationOptions {
            n: 1,
            best_of: 1,
            max_tokens: None,
            sampling: SamplingParams { temperature: 1.0, ..SamplingParams::default() },
            stated: PartialSampling::default(),
            bad_words: Vec::new(),
            stop: StopConditions::default(),
            logprobs: None,
            logprob_tokens: Vec::new(),
            prompt_logprobs: None,
            most_prompt_tokens: None,
            skip_special_tokens: true,
            priority: 0,
            tenancy,
            timeout: None,
            return_token_ids: false,
            tokens_as_ids: false,
            stream: None,
            reports: ReportOptions::default(),
            speculation: SpeculationFields::default(),
            adapter: None,
            kv_transfer: KvTransfer::default(),
        }
    }

    /// Limits the client's priority. Lower values run first.
    pub fn limit_priority(&mut self, highest: i32) {
        self.priority = self.priority.max(highest);
    }

    /// Replaces the defaults of the protocol by what the model recommends.
    pub fn apply_recommended(&mut self, recommended: PartialSampling) {
        let sampling = std::mem::take(&mut self.sampling);
        self.sampling = self.stated.or(recommended).over(sampling);
    }

    /// Stops at what the model recommends, if the client names no stop strings.
    pub fn apply_recommended_stop(&mut self, recommended: &Arc<StopStrings>) {
        if self.stop.strings.strings().is_empty() {
            self.stop.strings = recommended.clone();
        }
    }

    /// The time limit of the whole request: the smaller of the client's and the server's.
    pub fn timeout(&self, most: Option<Duration>) -> Option<Duration> {
        match (self.timeout, most) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        }
    }

    /// The most tokens of a prompt that are kept, so that it leaves space for the answer. `None`: all.
    pub fn prompt_limit(&self, context_tokens: usize) -> Option<usize> {
        let answer = self.max_tokens.unwrap_or(1).max(1);
        self.most_prompt_tokens.map(|most| most.min(context_tokens.saturating_sub(answer)).max(1))
    }

    /// The `best_of` sequences that answer one prompt. They share its KV blocks. With a seed, sequence `i` uses seed + `i`, so
    /// that they differ.
    ///
    /// # Errors
    /// [`SubmitError::ContextLengthExceeded`] when the prompt leaves no space for a token.
    pub fn sequences(
        &self,
        prompt: Vec<TokenId>,
        context_tokens: usize,
    ) -> Result<impl Iterator<Item = GenerationRequest> + use<'_>, SubmitError> {
        let max_tokens = budget(prompt.len(), context_tokens, self.max_tokens)?;
        let request = GenerationRequest {
            prompt,
            media: PromptMedia::default(),
            sampling: self.sampling.clone(),
            stop: StopConditions { max_tokens, min_tokens: self.stop.min_tokens.min(max_tokens), ..self.stop.clone() },
            // The answers are ranked by probability.
            logprobs: if self.best_of > self.n { self.logprobs.or(Some(0)) } else { self.logprobs },
            logprob_tokens: self.logprob_tokens.clone(),
            prompt_logprobs: self.prompt_logprobs,
            skip_special_tokens: self.skip_special_tokens,
            visible_tokens: Arc::default(),
            reasoning: None,
            constraint: None,
            priority: self.priority,
            client: self.tenancy.client.clone(),
            cache_salt: self.tenancy.cache_salt.clone(),
            adapter: None,
            speculation: SpeculationOptions { is_off: self.speculation.is_off, prediction: Arc::default() },
            reports_progress: self.stream.is_some() && self.reports != ReportOptions::default(),
            embedding: None,
            second_text: None,
            kv_transfer: self.kv_transfer.clone(),
        };
        Ok((0..self.best_of as u64).map(move |i| {
            let mut request = request.clone();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(i));
            request
        }))
    }
}

/// How many tokens may be generated: the requested number, at most the rest of the context.
fn budget(prompt_tokens: usize, context_tokens: usize, asked: Option<usize>) -> Result<usize, SubmitError> {
    let left = context_tokens.checked_sub(prompt_tokens);
    match (left, asked) {
        (None, _) => Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens }),
        (Some(0), None | Some(1..)) => Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens }),
        (Some(left), asked) => Ok(asked.map_or(left, |asked| asked.min(left))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recommendation_replaces_only_what_the_client_leaves_open() {
        let stated = PartialSampling { temperature: Some(0.1), ..PartialSampling::default() };
        let sampling =
            stated.over(SamplingParams { top_p: 0.9, min_p: 0.2, seed: Some(1), ..SamplingParams::default() });
        let mut options = GenerationOptions { stated, sampling, ..GenerationOptions::new(Tenancy::default()) };
        let recommended = PartialSampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.8),
            repetition_penalty: Some(1.1),
            ..PartialSampling::default()
        };
        options.apply_recommended(recommended);
        let expected = SamplingParams {
            temperature: 0.1,
            top_k: 20,
            top_p: 0.8,
            min_p: 0.2,
            repetition_penalty: 1.1,
            seed: Some(1),
            ..SamplingParams::default()
        };
        assert_eq!(options.sampling, expected);
    }

    #[test]
    fn an_answer_is_limited_to_the_rest_of_the_context() {
        assert_eq!(budget(10, 100, None), Ok(90));
        assert_eq!(budget(10, 100, Some(20)), Ok(20));
        assert_eq!(budget(10, 100, Some(200)), Ok(90));
        assert_eq!(budget(100, 100, Some(0)), Ok(0));
        assert!(budget(100, 100, None).is_err());
        assert!(budget(101, 100, Some(0)).is_err());
    }
}
