//! A request that has ended, as it is recorded.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar, GrammarError};
use cuelight_engine::embedding::Pooling;
use cuelight_engine::engine::TokenId;
use cuelight_engine::sample::RepeatPenalty;
use serde::{Deserialize, Serialize};

use crate::core::ended_request::EndedRequest;
use crate::core::request::{GenerationRequest, ReasoningOptions, SamplingParams, SpeculationOptions, StopConditions};
use crate::core::stop_strings::StopStrings;

/// Tokens of a block that has a fingerprint.
pub const BLOCK_TOKENS: usize = 64;

/// A request that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The name of the model.
    pub model: String,
    /// The value of the header `x-request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When it came, and how long it took.
    pub times: EntryTimes,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// How it ended, as one of [`Event::END_REASONS`](crate::core::request::Event::END_REASONS).
    pub reason: String,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Least tokens of the answer.
    pub min_tokens: usize,
    /// The answer may continue after the model's end.
    pub ignore_eos: bool,
    /// How tokens were sampled, without `logit_bias`.
    pub sampling: SamplingParams,
    /// How its embedding was made, if it was for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Pooling>,
    /// Where the second of two texts began, if its prompt was two texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_text: Option<usize>,
    /// Whether it had a low-rank adapter, which is not recorded.
    pub has_adapter: bool,
    /// A fingerprint of the prompt up to the end of each whole block of [`BLOCK_TOKENS`] tokens.
    pub blocks: Vec<u64>,
    /// Texts and tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
}

/// When a request came, and how long it took, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EntryTimes {
    /// From the start of the recording to its arrival.
    pub arrived_ms: f64,
    /// From its arrival to its first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// From its arrival to its end.
    pub total_ms: f64,
}

/// The texts and tokens of a request, and what else follows from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// The tokens of the prompt.
    pub prompt: Vec<TokenId>,
    /// The tokens of the answer.
    pub tokens: Vec<TokenId>,
    /// Added to the logits of these tokens. JSON has no infinity: `null` means that the token never appears.
    #[serde(with = "biases")]
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The penalty on repetitions, which has texts at which they end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<RepeatPenalty>,
    /// Texts that end the answer.
    pub stop_strings: Vec<String>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<TokenId>,
    /// Special tokens are left out of the text, in which stop strings are searched.
    pub skip_special_tokens: bool,
    /// Except for these.
    pub visible_tokens: Vec<TokenId>,
    /// What the answer has to match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
    /// The reasoning before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningOptions>,
}

impl Entry {
    /// The entry of a request without texts. `secret` goes into the fingerprints.
    #[must_use]
    pub fn new(model: &str, request: &GenerationRequest, ended: &EndedRequest, times: EntryTimes, secret: u64) -> Self {
        Entry {
            model: model.to_owned(),
            request_id: ended.context.as_ref().map(|context| context.request_id.clone()),
            times,
            prompt_tokens: request.prompt.len(),
            cached_tokens: ended.usage.cached_tokens,
            completion_tokens: ended.usage.completion_tokens,
            reason: ended.reason.to_owned(),
            max_tokens: request.stop.max_tokens,
            min_tokens: request.stop.min_tokens,
            ignore_eos: request.stop.ignore_eos,
            sampling: SamplingParams { logit_bias: Vec::new(), repeats: None, ..request.sampling.clone() },
            embedding: request.embedding,
            second_text: request.second_text,
            has_adapter: request.adapter.is_some(),
            blocks: fingerprints(&request.prompt, secret),
            content: None,
        }
    }

    /// The request again, with the constraint compiled for a model.
    ///
    /// # Errors
    /// [`GrammarError`] when this model cannot have the constraint.
    pub fn request(&self, content: &Content, compiler: &ConstraintCompiler) -> Result<GenerationRequest, GrammarError> {
        let compile = |grammar: &Grammar| compiler.compile(grammar);
        Ok(GenerationRequest {
            prompt: content.prompt.clone(),
            sampling: SamplingParams {
                logit_bias: content.logit_bias.clone(),
                repeats: content.repeats.clone(),
                ..self.sampling.clone()
            },
            stop: StopConditions {
                max_tokens: self.max_tokens,
                min_tokens: self.min_tokens,
                ignore_eos: self.ignore_eos,
                // Too many strings would have been refused when the request came.
                strings: Arc::new(StopStrings::new(content.stop_strings.clone()).unwrap_or_default()),
                token_ids: content.stop_tokens.clone(),
                include_stop_string: false,
            },
            skip_special_tokens: content.skip_special_tokens,
            visible_tokens: content.visible_tokens.clone().into(),
            constraint: content.grammar.as_ref().map(compile).transpose()?,
            reasoning: content.reasoning.clone(),
            embedding: self.embedding,
            second_text: self.second_text,
            ..GenerationRequest::default()
        })
    }

    /// A request of the same lengths and parameters over other tokens. Prompts that began alike do so again. `vocabulary` are
    /// the tokens to choose from; `number` differs from entry to entry.
    #[must_use]
    pub fn stand_in(&self, vocabulary: &[TokenId], number: u64) -> GenerationRequest {
        let block = |seed: u64| (0..BLOCK_TOKENS as u64).map(move |index| token_of((seed, index), vocabulary));
        let rest = (0..BLOCK_TOKENS as u64).map(|index| token_of((number, index, "rest"), vocabulary));
        let prompt = self.blocks.iter().flat_map(|&seed| block(seed)).chain(rest).take(self.prompt_tokens).collect();
        GenerationRequest {
            prompt,
            sampling: self.sampling.clone(),
            stop: StopConditions { max_tokens: self.completion_tokens, ignore_eos: true, ..StopConditions::default() },
            speculation: SpeculationOptions { is_off: true, ..SpeculationOptions::default() },
            embedding: self.embedding,
            second_text: self.second_text,
            ..GenerationRequest::default()
        }
    }
}

impl Content {
    /// The texts and tokens of a request and its answer.
    #[must_use]
    pub fn new(request: &GenerationRequest, tokens: Vec<TokenId>) -> Self {
        Content {
            prompt: request.prompt.clone(),
            tokens,
            logit_bias: request.sampling.logit_bias.clone(),
            repeats: request.sampling.repeats.clone(),
            stop_strings: request.stop.strings.strings().to_vec(),
            stop_tokens: request.stop.token_ids.clone(),
            skip_special_tokens: request.skip_special_tokens,
            visible_tokens: request.visible_tokens.to_vec(),
            grammar: request.constraint.as_ref().map(Constraint::grammar).cloned(),
            reasoning: request.reasoning.clone(),
        }
    }
}

/// The form of [`Content::logit_bias`] in JSON.
mod biases {
    use cuelight_engine::engine::TokenId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(biases: &[(TokenId, f32)], serializer: S) -> Result<S::Ok, S::Error> {
        let finite = |&(token, bias): &(TokenId, f32)| (token, Some(bias).filter(|bias| bias.is_finite()));
        biases.iter().map(finite).collect::<Vec<_>>().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(TokenId, f32)>, D::Error> {
        let biases = Vec::<(TokenId, Option<f32>)>::deserialize(deserializer)?;
        Ok(biases.into_iter().map(|(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY))).collect())
    }
}

/// A fingerprint of all tokens up to the end of each whole block.
fn fingerprints(tokens: &[TokenId], secret: u64) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    secret.hash(&mut hasher);
    let blocks = tokens.chunks_exact(BLOCK_TOKENS).map(|block| {
        block.hash(&mut hasher);
        hasher.finish()
    });
    blocks.collect()
}

/// A token that follows from a seed.
fn token_of(seed: impl Hash, vocabulary: &[TokenId]) -> TokenId {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    let index = hasher.finish() % vocabulary.len().max(1) as u64;
    vocabulary.get(index as usize).copied().unwrap_or_default()
}

#[cfg(test)]
impl Entry {
    /// An entry of a short request.
    pub(super) fn example() -> Self {
        Entry {
            model: "m".into(),
            request_id: None,
            times: EntryTimes { arrived_ms: 0.0, first_token_ms: None, total_ms: 1.0 },
            prompt_tokens: 1,
            cached_tokens: 0,
            completion_tokens: 1,
            reason: "length".into(),
            max_tokens: 1,
            min_tokens: 0,
            ignore_eos: false,
            sampling: SamplingParams::default(),
            embedding: None,
            second_text: None,
            has_adapter: false,
            blocks: Vec::new(),
            content: None,
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_never_appears_is_recorded() {
        let sampling =
            SamplingParams { logit_bias: vec![(2, f32::NEG_INFINITY), (7, 1.5)], ..SamplingParams::default() };
        let content = Content::new(&GenerationRequest { sampling, ..GenerationRequest::default() }, vec![3]);
        let line = serde_json::to_string(&content).unwrap();
        assert!(line.contains("[[2,null],[7,1.5]]"), "{line}");
        assert_eq!(serde_json::from_str::<Content>(&line).unwrap(), content);
    }

    #[test]
    fn prompts_that_begin_alike_have_stand_ins_that_begin_alike() {
        let vocabulary: Vec<TokenId> = (10..200).collect();
        let stand_in = |prompt: &[TokenId], number| {
            let (prompt_tokens, blocks) = (prompt.len(), fingerprints(prompt, 3));
            let entry = Entry { prompt_tokens, completion_tokens: 7, max_tokens: 9, blocks, ..Entry::example() };
            entry.stand_in(&vocabulary, number)
        };
        let first: Vec<TokenId> = (0..200).collect();
        let mut second = first.clone();
        second[130] = 9;
        let (first, second) = (stand_in(&first, 1), stand_in(&second, 2));
        assert_eq!((first.prompt.len(), first.stop.max_tokens), (200, 7));
        assert_eq!(first.prompt[..128], second.prompt[..128]);
        assert_ne!(first.prompt[128..192], second.prompt[128..192]);
        assert!(first.prompt.iter().all(|token| vocabulary.contains(token)));
    }
}
