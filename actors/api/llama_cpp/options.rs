//! Reads how to generate, and describes the defaults.

use serde_json::{Value, json};

use super::logit_bias;
use crate::api::fields::Fields;
use crate::api::{llama_sampling, lora_choice, reports, stop_strings};
use crate::core::request::{PartialSampling, SamplingParams, StopConditions};
use crate::serving::error::ApiError;
use crate::serving::options::{GenerationOptions, StreamOptions};
use crate::serving::tenancy::Tenancy;

/// How llama.cpp samples what is not set.
fn defaults() -> SamplingParams {
    SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..SamplingParams::default() }
}

/// Reads the options of a request. Those that have no meaning here are ignored, because editors always send them.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>, tenancy: Tenancy) -> Result<GenerationOptions, ApiError> {
    let most = fields.integer("n_predict", i64::MIN..=i64::MAX)?;
    let is_streamed = fields.bool("stream")?.unwrap_or(false);
    let (stated, sampling) = llama_sampling::read(fields, defaults())?;
    Ok(GenerationOptions {
        // -1 is no limit, and -2 the rest of the context, which is the same here.
        max_tokens: most.and_then(|most| usize::try_from(most).ok()),
        sampling: SamplingParams { logit_bias: logit_bias::read(fields)?, ..sampling },
        stated,
        stop: StopConditions {
            strings: stop_strings::read(fields, "stop")?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            ..StopConditions::default()
        },
        logprobs: n_probs(fields)?,
        return_token_ids: fields.bool("return_tokens")?.unwrap_or(false),
        stream: is_streamed.then(StreamOptions::default),
        reports: reports::read(fields)?,
        adapter: lora_choice::read(fields)?,
        ..GenerationOptions::new(tenancy)
    })
}

/// Most alternatives with each token.
const MOST_PROBS: i64 = 20;

/// The number of alternatives, of which 0 asks for no probabilities at all.
fn n_probs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let count = fields.integer("n_probs", 0..=MOST_PROBS)?.filter(|&count| count > 0);
    Ok(count.and_then(|count| usize::try_from(count).ok()))
}

/// The defaults for a model that recommends some, under the names of the fields.
pub(super) fn default_params(recommended: PartialSampling) -> Value {
    let sampling = recommended.over(defaults());
    params(&GenerationOptions { sampling, ..GenerationOptions::new(Tenancy::default()) })
}

/// The options under the names of the fields.
pub(super) fn params(options: &GenerationOptions) -> Value {
    let sampling = &options.sampling;
    json!({
        "n_predict": options.max_tokens.map_or(json!(-1), |most| json!(most)),
        "seed": sampling.seed.unwrap_or(u32::MAX.into()),
        "temperature": decimal(sampling.temperature),
        "dynatemp_range": decimal(sampling.dynamic_temperature.range),
        "dynatemp_exponent": decimal(sampling.dynamic_temperature.exponent),
        "top_k": sampling.top_k,
        "top_p": decimal(sampling.top_p),
        "min_p": decimal(sampling.min_p),
        "typical_p": decimal(sampling.typical_p),
        "top_n_sigma": decimal(sampling.top_n_sigma),
        "xtc_probability": decimal(sampling.xtc.probability),
        "xtc_threshold": decimal(sampling.xtc.threshold),
        "dry_multiplier": decimal(sampling.repeats.as_ref().map_or(0.0, |repeats| repeats.multiplier)),
        "repeat_penalty": decimal(sampling.repetition_penalty),
        "presence_penalty": decimal(sampling.presence_penalty),
        "frequency_penalty": decimal(sampling.frequency_penalty),
        "n_probs": options.logprobs.unwrap_or(0),
        "stop": options.stop.strings.strings(),
        "ignore_eos": options.stop.ignore_eos,
        "stream": options.stream.is_some(),
    })
}

/// The number with the digits that it was written with.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn options(body: &Value) -> Result<GenerationOptions, ApiError> {
        read(&Fields::of_body(body).unwrap(), Tenancy::default())
    }

    #[test]
    fn what_is_not_set_is_what_the_server_describes() {
        let params = default_params(PartialSampling::default());
        let (unset, described) = (options(&json!({})).unwrap(), options(&params).unwrap());
        assert_eq!(GenerationOptions { stated: described.stated, ..unset.clone() }, described);
        assert_eq!((unset.max_tokens, unset.sampling.seed, unset.stream), (None, None, None));
        assert_eq!(params["top_p"], 0.95);
        let recommended = PartialSampling { top_p: Some(0.8), ..PartialSampling::default() };
        assert_eq!(default_params(recommended)["top_p"], 0.8);
    }

    #[test]
    fn what_is_described_is_what_was_asked_for() {
        let asked =
            json!({ "n_predict": 3, "seed": 5, "repeat_penalty": 1.5, "stop": ["a"], "n_probs": 2, "stream": true });
        let read = options(&asked).unwrap();
        let described = params(&read);
        for (name, value) in asked.as_object().unwrap() {
            assert_eq!(described[name], *value, "{name}");
        }
        let again = options(&described).unwrap();
        assert_eq!(GenerationOptions { stated: again.stated, ..read }, again);
    }

    #[test]
    fn the_options_of_editors_are_read_or_ignored() {
        let read = options(&json!({
            "n_predict": 128, "top_k": 5, "top_p": 0.5, "stream": true, "stop": ["\n"], "ignore_eos": true, "seed": 3,
            "samplers": ["top_k", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
            "n_indent": 4, "id_slot": 0, "return_tokens": true
        }))
        .unwrap();
        assert_eq!((read.max_tokens, read.sampling.top_k, read.sampling.top_p), (Some(128), 5, 0.5));
        assert_eq!((read.sampling.seed, read.stop.strings.strings()), (Some(3), &["\n".to_owned()][..]));
        assert!(read.stream.is_some() && read.stop.ignore_eos && read.return_token_ids);
    }

    #[test]
    fn each_invalid_option_is_named() {
        for (name, value) in
            [("n_predict", json!("many")), ("temperature", json!(-1)), ("stop", json!(5)), ("n_probs", json!(21))]
        {
            match options(&json!({ name: value })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, name),
                other => panic!("{other:?}"),
            }
        }
    }
}
