//! Reads `options`, `logprobs` and `top_logprobs`: how to generate.

use serde_json::json;

use crate::api::fields::Fields;
use crate::api::llama_sampling;
use crate::api::stop_strings;
use crate::core::request::{SamplingParams, StopConditions};
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;
use crate::serving::tenancy::Tenancy;

/// What a request says about generation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub generation: GenerationOptions,
    /// The context length that the client wants.
    pub context_tokens: Option<usize>,
}

/// What is not set. The repetition penalty is off: it counts the whole prompt and not the last 64 tokens, and Ollama's own
/// engine has none.
fn defaults() -> SamplingParams {
    SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, ..SamplingParams::default() }
}

/// Reads the options of a request. What is not set has Ollama's default. Unknown options are ignored, because clients send
/// those of every version.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the option.
pub(super) fn read(fields: &Fields<'_>, tenancy: Tenancy) -> Result<Options, ApiError> {
    let none = json!({});
    let options = match fields.object("options")? {
        Some(options) => options,
        None => Fields::of(&none, fields.path("options"))?,
    };
    let (stated, sampling) = llama_sampling::read(&options, defaults())?;
    let generation = GenerationOptions {
        // -1 is no limit, and -2 the rest of the context, which is the same here.
        max_tokens: options.integer("num_predict", i64::MIN..=i64::MAX)?.and_then(|most| match most {
            ..=0 => None,
            most => usize::try_from(most).ok(),
        }),
        sampling,
        stated,
        stop: StopConditions { strings: stop_strings::read(&options, "stop")?, ..StopConditions::default() },
        logprobs: logprobs(fields)?,
        ..GenerationOptions::new(tenancy)
    };
    Ok(Options { generation, context_tokens: options.count("num_ctx", 0)? })
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.integer("top_logprobs", 0..=20)?.map_or(0, |top| top as usize);
    let is_wanted = fields.bool("logprobs")?.unwrap_or(false);
    Ok(is_wanted.then_some(top))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn options(options: Value) -> Result<Options, ApiError> {
        let body = json!({ "options": options });
        read(&Fields::of_body(&body).unwrap(), Tenancy::default())
    }

    #[test]
    fn what_is_not_set_has_ollamas_default() {
        let Options { generation, context_tokens } = options(json!(null)).unwrap();
        let sampling = &generation.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.8, 40, 0.9));
        assert_eq!((sampling.min_p, sampling.repetition_penalty, sampling.seed), (0.0, 1.0, None));
        assert_eq!((generation.max_tokens, generation.n, context_tokens), (None, 1, None));
        assert_eq!(generation.logprobs, None);
    }

    #[test]
    fn every_option_is_read() {
        let read = options(json!({
            "num_predict": 7, "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.7, "seed": 5,
            "repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4, "stop": ["a", "b"], "num_ctx": 99,
            "num_gpu": 1, "unknown": {}
        }))
        .unwrap();
        let expected = SamplingParams {
            temperature: 0.0,
            top_k: 3,
            top_p: 0.5,
            min_p: 0.1,
            typical_p: 0.7,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: -0.4,
            seed: Some(5),
            ..SamplingParams::default()
        };
        assert_eq!(read.generation.sampling, expected);
        assert_eq!((read.generation.max_tokens, read.context_tokens), (Some(7), Some(99)));
    }

    #[test]
    fn values_that_turn_something_off_are_accepted() {
        for unlimited in [-1, -2, 0] {
            assert_eq!(options(json!({ "num_predict": unlimited })).unwrap().generation.max_tokens, None);
        }
        let off =
            options(json!({ "top_k": -1, "top_p": 0, "seed": -1, "repeat_penalty": 2, "repeat_last_n": 0 })).unwrap();
        let sampling = off.generation.sampling;
        assert_eq!((sampling.top_k, sampling.seed, sampling.repetition_penalty), (0, None, 1.0));
        assert!(sampling.validate().is_ok());
    }

    #[test]
    fn each_invalid_option_is_named() {
        for (name, value) in [
            ("temperature", json!(-1)),
            ("top_p", json!(2)),
            ("num_predict", json!("many")),
            ("stop", json!(5)),
            ("num_ctx", json!(-4)),
            ("repeat_penalty", json!(0)),
        ] {
            match options(json!({ name: value })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, format!("options.{name}")),
                other => panic!("{other:?}"),
            }
        }
        assert!(options(json!([])).is_err());
    }

    #[test]
    fn alternatives_are_given_with_logprobs_only() {
        let count =
            |body: Value| read(&Fields::of_body(&body).unwrap(), Tenancy::default()).unwrap().generation.logprobs;
        assert_eq!(count(json!({ "logprobs": true, "top_logprobs": 3 })), Some(3));
        assert_eq!(count(json!({ "logprobs": true })), Some(0));
        assert_eq!(count(json!({ "top_logprobs": 3 })), None);
    }
}
