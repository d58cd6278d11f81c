//! The sampling fields that the protocols of llama.cpp and Ollama share.

use std::ops::RangeInclusive;

use super::extra_samplers;
use super::fields::Fields;
use crate::core::request::{PartialSampling, SamplingParams};
use crate::serving::error::ApiError;

const PENALTIES: RangeInclusive<f64> = -100.0..=100.0;

/// Reads how to sample: what is stated, and all parameters. What is not set is as in `defaults`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(
    options: &Fields<'_>,
    defaults: SamplingParams,
) -> Result<(PartialSampling, SamplingParams), ApiError> {
    let share = |name: &str| options.share(name);
    let penalty = |name: &str| Ok::<_, ApiError>(options.number(name, PENALTIES)?.unwrap_or(0.0));
    let top_k = options.integer("top_k", i64::MIN..=i64::from(u32::MAX))?;
    let stated = PartialSampling {
        temperature: options.number("temperature", 0.0..=100.0)?,
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: share("top_p")?,
        min_p: options.number("min_p", 0.0..=1.0)?,
        repetition_penalty: repetition_penalty(options)?,
    };
    let mut params = SamplingParams {
        typical_p: share("typical_p")?.unwrap_or(defaults.typical_p),
        presence_penalty: penalty("presence_penalty")?,
        frequency_penalty: penalty("frequency_penalty")?,
        logit_bias: Vec::new(),
        seed: seed(options)?,
        ..stated.over(defaults)
    };
    extra_samplers::read(options, &mut params)?;
    Ok((stated, params))
}

/// The penalty by llama.cpp's names. A window of no tokens turns it off.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn repetition_penalty(options: &Fields<'_>) -> Result<Option<f32>, ApiError> {
    let penalty = options.number("repeat_penalty", 0.01..=100.0)?;
    let window = options.integer("repeat_last_n", i64::MIN..=i64::MAX)?;
    Ok(if window == Some(0) { Some(1.0) } else { penalty })
}

/// Both -1 and its 32 bits without a sign ask for a fresh seed.
fn seed(options: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let seed = options.integer("seed", i64::MIN..=i64::MAX)?;
    Ok(seed.filter(|seed| ![-1, i64::from(u32::MAX)].contains(seed)).map(i64::cast_unsigned))
}
