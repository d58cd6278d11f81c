//! The fields that control generation. Chat completions and legacy completions share them.

use std::collections::HashSet;
use std::ops::{Bound, RangeInclusive};
use std::time::Duration;

use cuelight_engine::engine::TokenId;

use super::speculation;
use crate::api::fields::{Fields, number};
use crate::api::{extra_samplers, llama_sampling, lora_choice, reports, stop_strings, truncation};
use crate::core::request::{PartialSampling, SamplingParams, StopConditions};
use crate::serving::error::{ApiError, clip};
use crate::serving::options::{GenerationOptions, StreamOptions};
use crate::serving::tenancy::Tenancy;

/// Most alternatives that may be requested with each token.
pub(super) const MOST_LOGPROBS: i64 = 20;

/// Most tokens whose log-probabilities may be requested with each token, as in vLLM.
const MOST_LOGPROB_TOKENS: usize = 128;

/// Most answers to one prompt.
const MOST_CHOICES: i64 = 128;

/// A smaller penalty makes logits infinite, and no model is usable near either end.
const REPETITION_PENALTIES: RangeInclusive<f64> = 0.01..=100.0;

/// Most stop tokens. Each one costs time at every token.
const MOST_STOP_TOKENS: usize = 1024;

/// Most tokens that an answer may be limited to.
const MOST_ALLOWED_TOKENS: usize = 65_536;

/// Reads and checks all fields except `logprobs` and `max_tokens`, which differ between the two protocols.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(
    fields: &Fields<'_>,
    tenancy: Tenancy,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
) -> Result<GenerationOptions, ApiError> {
    let n = fields.integer("n", 1..=MOST_CHOICES)?.map_or(1, |n| n as usize);
    let seconds: Option<f32> = fields.number("timeout", (Bound::Excluded(0.0), Bound::Included(86400.0)))?;
    let stated = stated_sampling(fields)?;
    let options = GenerationOptions {
        n,
        best_of: fields.integer("best_of", 1..=MOST_CHOICES)?.map_or(n, |best_of| best_of as usize),
        max_tokens,
        sampling: sampling_params(fields, stated)?,
        stated,
        bad_words: stop_strings::read_strings(fields, "bad_words")?,
        stop: stop_conditions(fields)?,
        logprobs,
        logprob_tokens: logprob_tokens(fields, logprobs.is_some())?,
        prompt_logprobs: logprobs_count(fields, "prompt_logprobs")?,
        most_prompt_tokens: truncation::read(fields)?,
        skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
        priority: fields.integer("priority", i32_range())?.map_or(0, |priority| priority as i32),
        timeout: seconds.map(Duration::from_secs_f32),
        return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
        tokens_as_ids: fields.bool("return_tokens_as_token_ids")?.unwrap_or(false),
        stream: stream_options(fields)?,
        reports: reports::read(fields)?,
        speculation: speculation::read(fields)?,
        adapter: lora_choice::read(fields)?,
        ..GenerationOptions::new(tenancy)
    };
    check_together(&options, fields)?;
    Ok(options)
}

fn check_together(options: &GenerationOptions, fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(max_tokens) = options.max_tokens
        && options.stop.min_tokens > max_tokens
    {
        let message = format!("`min_tokens` ({}) must not exceed `max_tokens` ({max_tokens})", options.stop.min_tokens);
        return Err(ApiError::invalid("min_tokens", message));
    }
    if options.prompt_logprobs.is_some() && options.stream.is_some() {
        return Err(ApiError::invalid(
            "prompt_logprobs",
            "`prompt_logprobs` cannot be streamed; set `stream` to false",
        ));
    }
    if options.stream.is_none() && fields.get("stream_options").is_some() {
        return Err(ApiError::invalid("stream_options", "`stream_options` is only allowed when `stream` is true"));
    }
    if options.best_of < options.n {
        return Err(ApiError::invalid("best_of", "`best_of` must not be less than `n`"));
    }
    if options.best_of > options.n && options.stream.is_some() {
        let message = "the best of `best_of` answers are known only at the end; set `stream` to false";
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(())
}

/// The requested number of alternatives in the field `name`, 0 to 20.
pub(super) fn logprobs_count(fields: &Fields<'_>, name: &str) -> Result<Option<usize>, ApiError> {
    Ok(fields.integer(name, 0..=MOST_LOGPROBS)?.map(|count| count as usize))
}

/// The alternatives that a client names. An empty list is refused, as in vLLM.
fn logprob_tokens(fields: &Fields<'_>, has_logprobs: bool) -> Result<Vec<TokenId>, ApiError> {
    const NAME: &str = "logprob_token_ids";
    let Some(listed) = fields.token_ids(NAME)? else { return Ok(Vec::new()) };
    if !has_logprobs {
        return Err(ApiError::invalid(NAME, format!("`{NAME}` needs `logprobs`")));
    }
    if !(1..=MOST_LOGPROB_TOKENS).contains(&listed.len()) {
        let message = format!("`{NAME}` must have 1 to {MOST_LOGPROB_TOKENS} tokens, not {}", listed.len());
        return Err(ApiError::invalid(NAME, message));
    }
    let mut seen = HashSet::new();
    Ok(listed.into_iter().filter(|token| seen.insert(*token)).collect())
}

const ABOVE_ZERO_TO_ONE: (Bound<f64>, Bound<f64>) = (Bound::Excluded(0.0), Bound::Included(1.0));

fn stated_sampling(fields: &Fields<'_>) -> Result<PartialSampling, ApiError> {
    Ok(PartialSampling {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        // Other servers use -1 for off.
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: fields.share("top_p")?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repetition_penalty: match fields.number("repetition_penalty", REPETITION_PENALTIES)? {
            None => llama_sampling::repetition_penalty(fields)?,
            penalty => penalty,
        },
    })
}

/// The most tokens by llama.cpp's name, at least `least`. `None`: as many as fit.
pub(super) fn n_predict(fields: &Fields<'_>, least: u32) -> Result<Option<usize>, ApiError> {
    match fields.integer("n_predict", i64::MIN..=i64::MAX)? {
        Some(most) if most >= 0 => fields.count("n_predict", least),
        _ => Ok(None),
    }
}

fn sampling_params(fields: &Fields<'_>, stated: PartialSampling) -> Result<SamplingParams, ApiError> {
    let mut params = SamplingParams {
        typical_p: fields.number("typical_p", ABOVE_ZERO_TO_ONE)?.unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(fields)?,
        allowed_tokens: allowed_tokens(fields)?,
        // -1 is how other servers ask for a fresh seed.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.filter(|seed| *seed != -1).map(i64::cast_unsigned),
        ..stated.over(SamplingParams::default())
    };
    extra_samplers::read(fields, &mut params)?;
    Ok(params)
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let mut logit_bias = Vec::with_capacity(biases.map().len());
    for (key, bias) in biases.map() {
        let token = key.parse().map_err(|_| {
            let message = format!("a key of `logit_bias` must be a token id, not {}", clip(key));
            ApiError::invalid("logit_bias", message)
        })?;
        logit_bias.push((token, number(bias, &biases.path(key), -100.0..=100.0)?));
    }
    Ok(logit_bias)
}

/// An empty list allows all tokens.
fn allowed_tokens(fields: &Fields<'_>) -> Result<Option<Vec<TokenId>>, ApiError> {
    let tokens = token_set(fields, "allowed_token_ids", MOST_ALLOWED_TOKENS)?;
    Ok(Some(tokens).filter(|tokens| !tokens.is_empty()))
}

fn stop_conditions(fields: &Fields<'_>) -> Result<StopConditions, ApiError> {
    Ok(StopConditions {
        max_tokens: 0,
        min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
        strings: stop_strings::read(fields, "stop")?,
        token_ids: token_set(fields, "stop_token_ids", MOST_STOP_TOKENS)?,
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        include_stop_string: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
    })
}

/// Different token ids, at most `most`.
fn token_set(fields: &Fields<'_>, name: &str, most: usize) -> Result<Vec<TokenId>, ApiError> {
    let mut tokens = fields.token_ids(name)?.unwrap_or_default();
    tokens.sort_unstable();
    tokens.dedup();
    if tokens.len() > most {
        let message = format!("`{name}` accepts at most {most} tokens, not {}", tokens.len());
        return Err(ApiError::invalid(name, message));
    }
    Ok(tokens)
}

fn stream_options(fields: &Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let options = match fields.object("stream_options")? {
        None => StreamOptions::default(),
        Some(options) => StreamOptions {
            include_usage: options.bool("include_usage")?.unwrap_or(false),
            continuous_usage: options.bool("continuous_usage_stats")?.unwrap_or(false),
        },
    };
    Ok(stream.then_some(options))
}

fn i32_range() -> RangeInclusive<i64> {
    i64::from(i32::MIN)..=i64::from(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<GenerationOptions, ApiError> {
        let fields = Fields::of_body(body).unwrap();
        super::read(&fields, Tenancy::default(), fields.count("max_tokens", 1)?, None)
    }

    fn param(body: &Value) -> String {
        match read(body).unwrap_err() {
            ApiError::InvalidRequest { param: Some(param), .. } | ApiError::Unsupported { param, .. } => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_empty_request_samples_from_the_unmodified_distribution() {
        let options = read(&json!({})).unwrap();
        assert_eq!(options.n, 1);
        assert_eq!((options.sampling.temperature, options.sampling.top_p, options.sampling.top_k), (1.0, 1.0, 0));
        assert_eq!(options.sampling.seed, None);
        assert!(options.skip_special_tokens);
    }

    #[test]
    fn each_invalid_value_is_named() {
        for (body, name) in [
            (json!({ "temperature": -1 }), "temperature"),
            (json!({ "top_p": 1.5 }), "top_p"),
            (json!({ "repeat_penalty": 0 }), "repeat_penalty"),
            (json!({ "n": 0 }), "n"),
            (json!({ "stop": ["a", ""] }), "stop[1]"),
            (json!({ "stop": 5 }), "stop"),
            (json!({ "stop_token_ids": [1, "x"] }), "stop_token_ids[1]"),
            (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
            (json!({ "logit_bias": { "5": 101 } }), "logit_bias.5"),
            (json!({ "stream_options": {} }), "stream_options"),
            (json!({ "stream": true, "stream_options": { "include_usage": 1 } }), "stream_options.include_usage"),
            (json!({ "stream": true, "prompt_logprobs": 1 }), "prompt_logprobs"),
            (json!({ "min_tokens": 9, "max_tokens": 3 }), "min_tokens"),
            (json!({ "n": 2, "best_of": 1 }), "best_of"),
            (json!({ "best_of": 3, "stream": true }), "best_of"),
            (json!({ "timeout": 0 }), "timeout"),
            (json!({ "repetition_penalty": 1e-38 }), "repetition_penalty"),
            (json!({ "stop_token_ids": (0..1025).collect::<Vec<_>>() }), "stop_token_ids"),
            (json!({ "stop": ["a".repeat(4096), "b".repeat(4097)] }), "stop"),
        ] {
            assert_eq!(param(&body), name, "{body}");
        }
    }

    #[test]
    fn a_client_can_lower_its_priority_but_not_raise_it() {
        for (asked, highest, used) in [(-1000, 0, 0), (7, 0, 7), (-5, -10, -5), (-50, -10, -10), (0, 3, 3)] {
            let mut options = read(&json!({ "priority": asked })).unwrap();
            options.limit_priority(highest);
            assert_eq!(options.priority, used, "{asked}");
        }
    }

    #[test]
    fn with_a_seed_each_answer_uses_the_next_seed() {
        let options = read(&json!({ "n": 3, "seed": 7, "max_tokens": 4 })).unwrap();
        let seeds: Vec<_> = options.sequences(vec![1, 2], 100).unwrap().map(|one| one.sampling.seed).collect();
        assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
    }

    #[test]
    fn names_of_llama_cpp_are_known() {
        for (body, penalty) in [
            (json!({ "repeat_penalty": 1.5 }), 1.5),
            (json!({ "repeat_penalty": 1.5, "repeat_last_n": 0 }), 1.0),
            (json!({ "repeat_penalty": 1.5, "repetition_penalty": 1.2 }), 1.2),
        ] {
            assert_eq!(read(&body).unwrap().sampling.repetition_penalty, penalty, "{body}");
        }
        for (most, expected) in [(json!(7), Some(7)), (json!(-1), None), (json!(null), None)] {
            assert_eq!(n_predict(&Fields::of_body(&json!({ "n_predict": most })).unwrap(), 1).unwrap(), expected);
        }
        assert!(n_predict(&Fields::of_body(&json!({ "n_predict": 0 })).unwrap(), 1).is_err());
    }

    #[test]
    fn a_share_of_nothing_keeps_the_most_likely_token() {
        let top_p = read(&json!({ "top_p": 0 })).unwrap().sampling.top_p;
        assert!(top_p > 0.0 && top_p < 1e-30, "{top_p}");
    }

    #[test]
    fn minus_one_means_a_fresh_seed_and_no_top_k() {
        let options = read(&json!({ "seed": -1, "top_k": -1 })).unwrap();
        assert_eq!((options.sampling.seed, options.sampling.top_k), (None, 0));
    }
}
