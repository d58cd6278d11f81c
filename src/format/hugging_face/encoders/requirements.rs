//! Refuses configs with values that an encoder does not compute.

use serde_json::Value as Json;

use super::super::error::HuggingFaceError;
use super::super::rules::Literal;
use super::config::EncoderConfig;
use super::spec::{EncoderFamily, Place, Requirement};

/// Checks all that a family requires.
pub(super) fn check(config: &EncoderConfig, family: &EncoderFamily) -> Result<(), HuggingFaceError> {
    family.requires.iter().copied().flatten().try_for_each(|requirement| match *requirement {
        Requirement::OneOf(place, key, allowed) => is_one_of(config, (place, key), allowed),
        Requirement::OfEncoder(place, key, of_encoder) => is_of_encoder(config, (place, key), of_encoder),
    })
}

fn is_one_of(config: &EncoderConfig, (place, key): (Place, &str), allowed: &[Literal]) -> Result<(), HuggingFaceError> {
    match config.get(place, key) {
        Some(found) if !allowed.iter().any(|value| value.is(found)) => {
            let wanted: Vec<String> = allowed.iter().map(|value| value.json().to_string()).collect();
            let wanted = if wanted.is_empty() { "null".to_owned() } else { wanted.join(" or ") };
            Err(config.wrong(place, key, found, wanted))
        }
        _ => Ok(()),
    }
}

fn is_of_encoder(config: &EncoderConfig, (place, key): (Place, &str), own: &str) -> Result<(), HuggingFaceError> {
    match (config.optional_number(place, key)?, config.number(own)?) {
        (Some(found), own_number) if found != own_number => {
            Err(config.wrong(place, key, &Json::from(found), format!("{own_number}, as {own} of config.json")))
        }
        _ => Ok(()),
    }
}
