//! Some of the sampling parameters: those that a request states, or those that the publisher of a model recommends.

use std::fmt;

use serde_json::{Map, Value};

use super::params::SamplingParams;
use crate::engine::TokenId;

/// The sampling parameters that a model may recommend, each stated or not.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)] // The fields are those of `SamplingParams`.
pub struct PartialSampling {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

impl PartialSampling {
    /// These parameters, and those of `other` that are not stated here.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        PartialSampling {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
        }
    }

    /// `params` with the stated parameters replaced.
    #[must_use]
    pub fn over(self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(params.temperature),
            top_k: self.top_k.unwrap_or(params.top_k),
            top_p: self.top_p.unwrap_or(params.top_p),
            min_p: self.min_p.unwrap_or(params.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(params.repetition_penalty),
            ..params
        }
    }

    /// The names and values of the stated parameters, with the digits that they were written with.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let float = |number: Option<f32>| number.map(|number| number.to_string());
        let all = [
            ("temperature", float(self.temperature)),
            ("top_k", self.top_k.map(|k| k.to_string())),
            ("top_p", float(self.top_p)),
            ("min_p", float(self.min_p)),
            ("repetition_penalty", float(self.repetition_penalty)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The stated parameters as a JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let parsed = |text: String| text.parse::<serde_json::Number>().map_or(Value::Null, Value::Number);
        Value::Object(
            self.entries().into_iter().map(|(name, text)| (name.to_owned(), parsed(text))).collect::<Map<_, _>>(),
        )
    }
}

/// How the publisher of a model recommends to sample from it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecommendedSampling {
    /// The parameters.
    pub stated: PartialSampling,
    /// Tokens that never appear in answers.
    pub banned_tokens: Vec<TokenId>,
    /// Which values cannot be used, each a sentence that names the file and the key.
    pub warnings: Vec<String>,
}

/// "temperature 0.6, top_k 20".
impl fmt::Display for PartialSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.entries().iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_stated_first_counts() {
        let request = PartialSampling { temperature: Some(0.0), ..PartialSampling::default() };
        let model = PartialSampling { temperature: Some(0.6), top_k: Some(20), ..PartialSampling::default() };
        let params = request.or(model).over(SamplingParams { top_p: 0.9, seed: Some(1), ..SamplingParams::default() });
        let expected =
            SamplingParams { temperature: 0.0, top_k: 20, top_p: 0.9, seed: Some(1), ..SamplingParams::default() };
        assert_eq!(params, expected);
    }

    #[test]
    fn values_have_the_digits_that_they_were_written_with() {
        let stated =
            PartialSampling { temperature: Some(0.6), top_k: Some(20), min_p: Some(0.0), ..Default::default() };
        assert_eq!(stated.to_string(), "temperature 0.6, top_k 20, min_p 0");
        assert_eq!(stated.json(), json!({ "temperature": 0.6, "top_k": 20, "min_p": 0 }));
        assert_eq!(PartialSampling::default().json(), json!({}));
    }
}
