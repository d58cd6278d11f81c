//! Numbers of JSON schemas.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

/// Whether a number has no fraction. As in JSON Schema, 1.0 is an integer.
pub(super) fn is_integer(number: &Number) -> bool {
    integer(number).is_some() || number.as_f64().is_some_and(|value| value.fract() == 0.0)
}

/// Whether a number has the limits of a schema, and is a multiple of what the schema says.
pub(super) fn has_limits(keywords: &Map<String, Value>, number: &Number) -> bool {
    let holds = |keyword: &str, holds: fn(Ordering) -> bool| match keywords.get(keyword) {
        Some(Value::Number(limit)) => compare(number, limit).is_some_and(holds),
        _ => true,
    };
    // Draft 4 has booleans, which change the other limit.
    let excludes = |keyword: &str| keywords.get(keyword) == Some(&Value::Bool(true));
    let of = keywords.get("multipleOf").and_then(Value::as_number);
    holds("minimum", if excludes("exclusiveMinimum") { Ordering::is_gt } else { Ordering::is_ge })
        && holds("maximum", if excludes("exclusiveMaximum") { Ordering::is_lt } else { Ordering::is_le })
        && holds("exclusiveMinimum", Ordering::is_gt)
        && holds("exclusiveMaximum", Ordering::is_lt)
        && of.is_none_or(|of| is_multiple(number, of).unwrap_or(false))
}

/// The order of two numbers, whatever their spelling.
pub(super) fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// Exact for decimal fractions. `None` for multiples of zero and of numbers with too many digits.
fn is_multiple(number: &Number, of: &Number) -> Option<bool> {
    let ((digits, exponent), (of_digits, of_exponent)) = (decimal(number)?, decimal(of)?);
    let shift = (exponent - of_exponent).unsigned_abs();
    let rest = match exponent >= of_exponent {
        true => {
            let mut rest = digits.checked_rem(of_digits)?;
            for _ in 0..shift {
                rest = rest.checked_mul(10)?.checked_rem(of_digits)?;
            }
            rest
        }
        false => match 10_i128.checked_pow(shift).and_then(|power| of_digits.checked_mul(power)) {
            Some(of_digits) => digits.checked_rem(of_digits)?,
            // It is greater than the number.
            None => digits,
        },
    };
    Some(rest == 0)
}

/// A number as an integer times a power of ten.
fn decimal(number: &Number) -> Option<(i128, i32)> {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}").parse().ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    Some((digits, exponent - i32::try_from(fraction.len()).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn has(schema: Value, number: &str) -> bool {
        let (Value::Object(keywords), Ok(number)) = (schema, serde_json::from_str(number)) else { panic!("{number}") };
        has_limits(&keywords, &number)
    }

    #[test]
    fn numbers_have_their_limits() {
        assert!(has(json!({ "minimum": 1, "maximum": 2 }), "1.0") && has(json!({ "minimum": 1, "maximum": 2 }), "2"));
        assert!(!has(json!({ "minimum": 1 }), "0.9") && !has(json!({ "maximum": 2 }), "2.1"));
        assert!(!has(json!({ "exclusiveMinimum": 1 }), "1") && has(json!({ "exclusiveMinimum": 1 }), "1.1"));
        assert!(!has(json!({ "maximum": 2, "exclusiveMaximum": true }), "2"));
        assert!(!has(json!({ "maximum": 9_007_199_254_740_992_u64 }), "9007199254740993"));
    }

    #[test]
    fn multiples_are_exact() {
        for (of, number, expected) in [
            (json!(0.1), "0.3", true),
            (json!(0.01), "19.99", true),
            (json!(0.1), "0.35", false),
            (json!(5), "-15", true),
            (json!(5), "1e300", true),
            (json!(7), "1e300", false),
            (json!(1e30), "5", false),
            (json!(1e300), "0", true),
            (json!(2.5), "7.5", true),
            (json!(0), "1", false),
        ] {
            assert_eq!(has(json!({ "multipleOf": of }), number), expected, "{number} of {of}");
        }
    }

    #[test]
    fn one_point_zero_is_an_integer() {
        let is = |text: &str| serde_json::from_str(text).is_ok_and(|number| is_integer(&number));
        assert!(is("1.0") && is("-3") && is("18446744073709551615") && is("1e3") && !is("1.5") && !is("1e-3"));
    }
}
