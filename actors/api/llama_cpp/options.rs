//! Reads how to generate, and describes the defaults.

use serde_json::{Value, json};

use crate::api::fields::Fields;
use crate::api::{llama_sampling, stop_strings};
use crate::core::request::{SamplingParams, StopConditions};
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
    Ok(GenerationOptions {
        // -1 is no limit, and -2 the rest of the context, which is the same here.
        max_tokens: most.and_then(|most| usize::try_from(most).ok()),
        sampling: llama_sampling::read(fields, defaults())?,
        stop: StopConditions {
            strings: stop_strings::read(fields, "stop")?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            ..StopConditions::default()
        },
        return_token_ids: fields.bool("return_tokens")?.unwrap_or(false),
        stream: is_streamed.then(StreamOptions::default),
        ..GenerationOptions::new(tenancy)
    })
}

/// The defaults under the names of the fields.
pub(super) fn default_params() -> Value {
    let SamplingParams { temperature, top_k, top_p, min_p, typical_p, .. } = defaults();
    json!({
        "n_predict": -1,
        "seed": u32::MAX,
        "temperature": decimal(temperature),
        "top_k": top_k,
        "top_p": decimal(top_p),
        "min_p": decimal(min_p),
        "typical_p": decimal(typical_p),
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "ignore_eos": false,
        "stream": false,
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
        let (unset, described) = (options(&json!({})).unwrap(), options(&default_params()).unwrap());
        assert_eq!(unset, described);
        assert_eq!((unset.max_tokens, unset.sampling.seed, unset.stream), (None, None, None));
        assert_eq!(default_params()["top_p"], 0.95);
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
        for (name, value) in [("n_predict", json!("many")), ("temperature", json!(-1)), ("stop", json!(5))] {
            match options(&json!({ name: value })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, name),
                other => panic!("{other:?}"),
            }
        }
    }
}
