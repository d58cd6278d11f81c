//! How the publisher of a model samples from it, by `generation_config.json` or by the keys of a GGUF file.
//!
//! A value that cannot be used is left out with a warning: the model itself is not damaged.

use std::path::Path;

use serde_json::Value as Json;

use crate::engine::TokenId;
use crate::format::gguf::write::GgufBuilder;
use crate::format::gguf::{Metadata, Value};
use crate::sample::{PartialSampling, RecommendedSampling};

/// The names of the parameters in a file.
struct Names {
    temperature: &'static str,
    top_k: &'static str,
    top_p: &'static str,
    min_p: &'static str,
    repetition_penalty: &'static str,
}

const JSON: Names = Names {
    temperature: "temperature",
    top_k: "top_k",
    top_p: "top_p",
    min_p: "min_p",
    repetition_penalty: "repetition_penalty",
};

const GGUF: Names = Names {
    temperature: "general.sampling.temp",
    top_k: "general.sampling.top_k",
    top_p: "general.sampling.top_p",
    min_p: "general.sampling.min_p",
    repetition_penalty: "general.sampling.penalty_repeat",
};

/// The sampling parameters of a `generation_config.json`. `do_sample` with `false` is a temperature of 0.
#[must_use]
pub fn of_json(path: &Path, config: &Json) -> RecommendedSampling {
    read(&JSON, path, config)
}

/// The sampling parameters in the keys `general.sampling.*`.
#[must_use]
pub fn of_gguf(file: &(impl Metadata + ?Sized)) -> RecommendedSampling {
    let sampling = file.metadata().iter().filter(|(key, _)| key.starts_with("general.sampling."));
    read(&GGUF, file.path(), &Json::Object(sampling.map(|(key, value)| (key.clone(), json(value))).collect()))
}

/// Adds the keys of the parameters to a GGUF file.
#[must_use]
pub fn add_keys(stated: &PartialSampling, file: GgufBuilder) -> GgufBuilder {
    let PartialSampling { temperature, top_k, top_p, min_p, repetition_penalty } = *stated;
    let floats = [
        (GGUF.temperature, temperature),
        (GGUF.top_p, top_p),
        (GGUF.min_p, min_p),
        (GGUF.repetition_penalty, repetition_penalty),
    ];
    let file = floats.into_iter().fold(file, |file, (key, value)| match value {
        Some(value) => file.key(key, value),
        None => file,
    });
    match top_k.and_then(|k| i32::try_from(k).ok()) {
        Some(k) => file.key(GGUF.top_k, k),
        None => file,
    }
}

/// A value of a GGUF file; those that are no number as text, which is not a usable parameter.
fn json(value: &Value) -> Json {
    match value {
        Value::F32(number) => Json::from(*number),
        Value::F64(number) => Json::from(*number),
        Value::I32(number) => Json::from(*number),
        Value::U32(number) => Json::from(*number),
        Value::I64(number) => Json::from(*number),
        Value::U64(number) => Json::from(*number),
        other => Json::from(format!("{:?}", other.value_type())),
    }
}

fn read(names: &Names, path: &Path, config: &Json) -> RecommendedSampling {
    let mut reader = Reader { path, config, warnings: Vec::new() };
    let share = |number: f32| number > 0.0 && number <= 1.0;
    let stated = PartialSampling {
        temperature: reader.number(names.temperature, |number| (0.0..=100.0).contains(&number), "from 0 to 100"),
        top_k: reader.top_k(names.top_k),
        top_p: reader.number(names.top_p, share, "above 0 and at most 1"),
        min_p: reader.number(names.min_p, |number| (0.0..=1.0).contains(&number), "from 0 to 1"),
        repetition_penalty: reader.number(
            names.repetition_penalty,
            |number| (0.01..=100.0).contains(&number),
            "from 0.01 to 100",
        ),
    };
    let temperature = if reader.is_greedy() { Some(0.0) } else { stated.temperature };
    let banned_tokens = reader.tokens("suppress_tokens");
    RecommendedSampling { stated: PartialSampling { temperature, ..stated }, banned_tokens, warnings: reader.warnings }
}

/// Reads values and collects warnings.
struct Reader<'a> {
    path: &'a Path,
    config: &'a Json,
    warnings: Vec<String>,
}

impl Reader<'_> {
    /// The value of a key that is not `null`.
    fn get(&self, key: &str) -> Option<&Json> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn number(&mut self, key: &str, is_allowed: impl Fn(f32) -> bool, wanted: &str) -> Option<f32> {
        #[allow(clippy::cast_possible_truncation)] // Sampling computes in float32.
        let number = self.get(key)?.as_f64().map(|number| number as f32).filter(|number| is_allowed(*number));
        if number.is_none() {
            self.warn(key, &format!("a number {wanted}"));
        }
        number
    }

    /// The tokens to keep. Below 0 means all of them.
    fn top_k(&mut self, key: &str) -> Option<usize> {
        let value = self.get(key)?;
        let number = value.as_i64().map(|k| usize::try_from(k).unwrap_or(0)).filter(|&k| k <= u32::MAX as usize);
        if number.is_none() {
            self.warn(key, "a whole number below 2^32");
        }
        number
    }

    /// A list of tokens. Some end with numbers below 0, which are none.
    fn tokens(&mut self, key: &str) -> Vec<TokenId> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(list) = value.as_array().filter(|list| list.iter().all(Json::is_i64)) else {
            self.warn(key, "a list of tokens");
            return Vec::new();
        };
        list.iter().filter_map(|token| TokenId::try_from(token.as_i64()?).ok()).collect()
    }

    fn is_greedy(&mut self) -> bool {
        let Some(value) = self.get("do_sample") else { return false };
        let is_greedy = *value == Json::Bool(false);
        if !value.is_boolean() {
            self.warn("do_sample", "true or false");
        }
        is_greedy
    }

    fn warn(&mut self, key: &str, wanted: &str) {
        let mut found = self.get(key).map(Json::to_string).unwrap_or_default();
        if let Some((cut, _)) = found.char_indices().nth(80) {
            found.truncate(cut);
            found.push('…');
        }
        let path = self.path.display();
        self.warnings.push(format!("{path}: key {key:?} is {found}, but must be {wanted}; it is ignored"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::gguf::Gguf;

    #[test]
    fn tokens_of_a_list_are_banned() {
        assert_eq!(read(json!({ "suppress_tokens": [3, 0, -1] })).banned_tokens, [3, 0]);
        let wrong = read(json!({ "suppress_tokens": ["a"] }));
        assert!(wrong.banned_tokens.is_empty() && wrong.warnings[0].contains("suppress_tokens"));
    }

    fn read(config: Json) -> RecommendedSampling {
        of_json(Path::new("m/generation_config.json"), &config)
    }

    #[test]
    fn a_gguf_file_states_what_was_written_to_it() {
        let stated = PartialSampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
        };
        let file = add_keys(&stated, GgufBuilder::new()).key("general.sampling.mirostat", 2_i32);
        let gguf = Gguf::from_bytes("m.gguf", file.build()).unwrap();
        assert_eq!(of_gguf(&gguf), RecommendedSampling { stated, ..RecommendedSampling::default() });

        let file = GgufBuilder::new().key("general.sampling.temp", "hot").key("general.sampling.top_k", -1_i32);
        let read = of_gguf(&Gguf::from_bytes("m.gguf", file.build()).unwrap());
        assert_eq!(read.stated, PartialSampling { top_k: Some(0), ..PartialSampling::default() });
        assert!(read.warnings[0].starts_with("m.gguf: key \"general.sampling.temp\" is "), "{:?}", read.warnings);
    }

    #[test]
    fn what_is_stated_is_read() {
        let all = read(json!({
            "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05,
            "eos_token_id": [1, 2]
        }));
        let expected = PartialSampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
        };
        assert_eq!((all.stated, all.warnings), (expected, Vec::new()));
        assert_eq!(read(json!({ "temperature": null })), RecommendedSampling::default());
        assert_eq!(read(json!([1])), RecommendedSampling::default());
        assert_eq!(read(json!({ "top_k": -1 })).stated.top_k, Some(0));
    }

    #[test]
    fn without_sampling_the_temperature_is_0() {
        let greedy = read(json!({ "do_sample": false, "temperature": 0.7, "top_p": 0.5 })).stated;
        assert_eq!((greedy.temperature, greedy.top_p), (Some(0.0), Some(0.5)));
    }

    #[test]
    fn a_wrong_value_is_a_warning_that_names_file_and_key() {
        for (key, value) in [
            ("temperature", json!("hot")),
            ("temperature", json!(-0.5)),
            ("temperature", json!(1e300)),
            ("top_k", json!(0.5)),
            ("top_k", json!(1_u64 << 40)),
            ("top_p", json!(0)),
            ("top_p", json!(1e-300)),
            ("min_p", json!(1.5)),
            ("repetition_penalty", json!(0)),
            ("do_sample", json!("x".repeat(1000))),
        ] {
            let RecommendedSampling { stated, warnings, .. } = read(json!({ key: value }));
            assert_eq!(stated, PartialSampling::default(), "{key} {value}");
            assert_eq!(warnings.len(), 1, "{key} {value}");
            let warning = &warnings[0];
            assert!(warning.starts_with(&format!("m/generation_config.json: key {key:?} is ")), "{warning}");
            assert!(warning.len() < 300, "{warning}");
        }
    }
}
