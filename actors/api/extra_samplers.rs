//! The samplers of llama.cpp that go beyond those of every protocol: dynamic temperature, DRY, XTC and top-n-sigma.

use std::ops::RangeInclusive;

use cuelight_engine::sample::{DynamicTemperature, RepeatPenalty, TopExclusion};
use serde_json::Value;

use super::fields::Fields;
use crate::core::request::SamplingParams;
use crate::serving::error::ApiError;

/// Most strings at which repetitions end, and most bytes of one.
const MOST_BREAKERS: usize = 64;
const LONGEST_BREAKER: usize = 64;

const FACTORS: RangeInclusive<f64> = 0.0..=100.0;

/// Reads the fields into `params`. What is not set stays as it is.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>, params: &mut SamplingParams) -> Result<(), ApiError> {
    // A negative value turns it off.
    if let Some(sigmas) = fields.number("top_n_sigma", -100.0..=100.0)? {
        params.top_n_sigma = sigmas.max(0.0);
    }
    params.dynamic_temperature = DynamicTemperature {
        range: fields.number("dynatemp_range", FACTORS)?.unwrap_or(0.0),
        exponent: fields.number("dynatemp_exponent", FACTORS)?.unwrap_or(1.0),
    };
    let probability = fields.number("xtc_probability", 0.0..=1.0)?.unwrap_or(0.0);
    let threshold = fields.number("xtc_threshold", 0.0..=1.0)?.unwrap_or(0.1);
    if probability > 0.0 {
        params.xtc = TopExclusion { probability, threshold };
    }
    params.repeats = repeats(fields)?;
    Ok(())
}

fn repeats(fields: &Fields<'_>) -> Result<Option<RepeatPenalty>, ApiError> {
    let multiplier: f32 = fields.number("dry_multiplier", FACTORS)?.unwrap_or(0.0);
    let window = fields.integer("dry_penalty_last_n", -1..=i64::from(u32::MAX))?;
    let penalty = RepeatPenalty {
        multiplier,
        base: fields.number("dry_base", FACTORS)?.unwrap_or(1.75),
        allowed_length: fields.count("dry_allowed_length", 0)?.unwrap_or(2),
        // -1 is the whole context.
        window: window.and_then(|window| usize::try_from(window).ok()),
        breakers: breakers(fields)?,
    };
    let is_on = multiplier > 0.0 && penalty.base >= 1.0 && penalty.window != Some(0);
    Ok(is_on.then_some(penalty))
}

fn breakers(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let Some(breakers) = fields.array(NAME)? else { return Ok(RepeatPenalty::BREAKERS.map(str::to_owned).to_vec()) };
    let text = |breaker: &Value| {
        breaker.as_str().filter(|text| (1..=LONGEST_BREAKER).contains(&text.len())).map(str::to_owned)
    };
    let texts: Option<Vec<String>> = breakers.iter().map(text).collect();
    texts.filter(|texts| texts.len() <= MOST_BREAKERS).ok_or_else(|| {
        let message = format!("`{NAME}` takes at most {MOST_BREAKERS} texts of 1 to {LONGEST_BREAKER} bytes");
        ApiError::invalid(fields.path(NAME), message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<SamplingParams, ApiError> {
        let mut params = SamplingParams::default();
        super::read(&Fields::of_body(body).unwrap(), &mut params).map(|()| params)
    }

    #[test]
    fn fields_are_off_unless_set_and_have_the_defaults_of_llama_cpp() {
        assert_eq!(
            read(&json!({ "dry_multiplier": 0, "xtc_probability": 0.0, "top_n_sigma": -1 })).unwrap().repeats,
            None
        );
        assert_eq!(read(&json!({})).unwrap(), SamplingParams::default());
        let dynamic = read(&json!({ "dynatemp_range": 0.5 })).unwrap().dynamic_temperature;
        assert_eq!((dynamic.range, dynamic.exponent), (0.5, 1.0));
        let params = read(&json!({ "dry_multiplier": 0.8, "xtc_probability": 0.5, "top_n_sigma": 1.5 })).unwrap();
        let penalty = params.repeats.unwrap();
        assert_eq!((penalty.base, penalty.allowed_length, penalty.window), (1.75, 2, None));
        assert_eq!(penalty.breakers, RepeatPenalty::BREAKERS);
        assert_eq!((params.xtc.probability, params.xtc.threshold, params.top_n_sigma), (0.5, 0.1, 1.5));
        for off in
            [json!({ "dry_multiplier": 0.8, "dry_base": 0.5 }), json!({ "dry_multiplier": 1, "dry_penalty_last_n": 0 })]
        {
            assert_eq!(read(&off).unwrap().repeats, None, "{off}");
        }
    }

    #[test]
    fn each_invalid_value_is_named() {
        for (body, name) in [
            (json!({ "dynatemp_range": -1 }), "dynatemp_range"),
            (json!({ "dynatemp_exponent": "a" }), "dynatemp_exponent"),
            (json!({ "xtc_probability": 2 }), "xtc_probability"),
            (json!({ "xtc_threshold": -0.1 }), "xtc_threshold"),
            (json!({ "dry_multiplier": -1 }), "dry_multiplier"),
            (json!({ "dry_penalty_last_n": -2 }), "dry_penalty_last_n"),
            (json!({ "dry_sequence_breakers": ["a", ""] }), "dry_sequence_breakers"),
            (json!({ "dry_sequence_breakers": "a" }), "dry_sequence_breakers"),
        ] {
            match read(&body).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, name),
                other => panic!("{other:?}"),
            }
        }
    }
}
