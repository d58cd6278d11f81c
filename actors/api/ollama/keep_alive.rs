//! Reads `keep_alive`: how long the model stays loaded after the request.

use std::time::Duration;

use serde_json::Value;

use crate::api::fields::{Fields, wrong_type};
use crate::models::KeepAlive;
use crate::serving::error::{ApiError, clip};

/// The units of a duration, in seconds. Of units with a common end the longer comes first.
const UNITS: [(&str, f64); 7] =
    [("ms", 1e-3), ("µs", 1e-6), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// Reads a number of seconds, or a text such as `5m` or `1h30m`. A negative value means forever.
///
/// # Errors
/// [`ApiError::InvalidRequest`].
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<KeepAlive>, ApiError> {
    const WANTED: &str = "a number of seconds or a duration such as \"5m\"";
    let seconds = match fields.get("keep_alive") {
        None => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => seconds_of(text),
        Some(other) => return Err(wrong_type("keep_alive", WANTED, other)),
    };
    let seconds = seconds.ok_or_else(|| {
        let given = fields.get("keep_alive").map(Value::to_string).unwrap_or_default();
        ApiError::invalid("keep_alive", format!("`keep_alive` must be {WANTED}, not {}", clip(&given)))
    })?;
    Ok(Some(if seconds < 0.0 { KeepAlive::Forever } else { limited(seconds) }))
}

/// A time too long for a clock is forever.
fn limited(seconds: f64) -> KeepAlive {
    const LONGEST: f64 = 100.0 * 365.0 * 86400.0;
    if seconds > LONGEST { KeepAlive::Forever } else { KeepAlive::For(Duration::from_secs_f64(seconds)) }
}

/// The seconds of a text: a number, or numbers with units that are added up.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Some(seconds) = decimal(rest) {
        return Some(sign * seconds);
    }
    let mut rest = rest;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, after) = rest.split_at(digits);
        let (unit, seconds) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        sum += decimal(number)? * seconds;
        rest = &after[unit.len()..];
    }
    (!text.is_empty()).then_some(sign * sum)
}

/// A number of digits with at most one point. `parse` alone would accept `inf` and `1e9`.
fn decimal(text: &str) -> Option<f64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_digits)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keep(value: Value) -> Result<Option<KeepAlive>, ApiError> {
        let body = json!({ "keep_alive": value });
        read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn seconds_and_durations_are_read() {
        for (value, seconds) in [
            (json!(300), 300.0),
            (json!(0), 0.0),
            (json!(1.5), 1.5),
            (json!("0"), 0.0),
            (json!("300"), 300.0),
            (json!("5m"), 300.0),
            (json!("1h30m"), 5400.0),
            (json!("1.5h"), 5400.0),
            (json!("250ms"), 0.25),
            (json!("1m1s1ms"), 61.001),
        ] {
            assert_eq!(keep(value.clone()).unwrap(), Some(KeepAlive::For(Duration::from_secs_f64(seconds))), "{value}");
        }
        for forever in [json!(-1), json!("-1"), json!("-1s"), json!("-5m"), json!(1e300), json!("9999999999h")] {
            assert_eq!(keep(forever.clone()).unwrap(), Some(KeepAlive::Forever), "{forever}");
        }
        assert_eq!(keep(json!(null)).unwrap(), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for wrong in
            [json!(""), json!("soon"), json!("5 m"), json!("5x"), json!("m"), json!("1e9"), json!("inf"), json!(true)]
        {
            assert!(keep(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
