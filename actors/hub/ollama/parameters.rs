//! What the publisher of a model recommends: the layers of parameters and of the system prompt.

use std::path::{Path, PathBuf};

use cuelight_engine::format::sampling;
use cuelight_engine::load::Recommended;
use serde_json::{Map, Value};

use super::manifest::Kind;
use super::store::{OllamaStore, StoredModel};
use crate::hub::error::HubError;

/// Ollama's parameters of sampling, and their names in a `generation_config.json`.
const SAMPLING: [(&str, &str); 5] = [
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repeat_penalty", "repetition_penalty"),
];
const STOP: &str = "stop";
const CONTEXT: &str = "num_ctx";
/// Most stop strings, and most bytes of all of them.
const MOST_STOPS: (usize, usize) = (256, 8 << 10);

/// What the publisher of a model recommends. The default is nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Published {
    /// What applies where a request and the settings say nothing.
    pub recommended: Recommended,
    /// The length of the context, in tokens.
    pub context_tokens: Option<usize>,
    /// Its projector file, if it has one.
    pub projector: Option<PathBuf>,
    /// The names of parameters that are not used.
    pub unused: Vec<String>,
}

impl Published {
    /// Reads the layers of a model.
    ///
    /// # Errors
    /// [`HubError::BadManifest`] when the parameters are no JSON object or a text is not UTF-8, [`HubError::Io`].
    pub(super) fn read(store: &OllamaStore, model: &StoredModel) -> Result<Self, HubError> {
        let text = |kind| model.manifest.layer(kind).map(|blob| store.text(&model.name, blob)).transpose();
        let mut published = match text(Kind::Parameters)? {
            Some(json) => Self::of_parameters(Path::new(&model.name.to_string()), &object(model, &json)?),
            None => Published::default(),
        };
        published.projector = model.manifest.layer(Kind::Projector).and_then(|blob| store.present(blob));
        published.recommended.system = text(Kind::System)?.filter(|text| !text.trim().is_empty());
        Ok(published)
    }

    /// `model` is what messages call the model.
    fn of_parameters(model: &Path, parameters: &Map<String, Value>) -> Self {
        let named = |(own, common): &(&str, &str)| Some(((*common).to_owned(), parameters.get(*own)?.clone()));
        let config = Value::Object(SAMPLING.iter().filter_map(named).collect());
        let mut recommended = Recommended { sampling: sampling::of_json(model, &config), ..Recommended::default() };
        let mut warn = |name: &str, wanted: &str| {
            let warning = format!("{}: parameter {name:?} must be {wanted}; it is ignored", model.display());
            recommended.sampling.warnings.push(warning);
        };
        let stop = stop_strings(parameters.get(STOP));
        if stop.is_none() {
            warn(STOP, "a few texts");
        }
        let context = parameters.get(CONTEXT).map(|value| value.as_u64().filter(|tokens| *tokens > 0));
        if context == Some(None) {
            warn(CONTEXT, "a number of tokens above 0");
        }
        recommended.stop = stop.unwrap_or_default();
        let is_used = |name: &str| name == STOP || name == CONTEXT || SAMPLING.iter().any(|(own, _)| *own == name);
        Published {
            recommended,
            projector: None,
            context_tokens: context.flatten().and_then(|tokens| usize::try_from(tokens).ok()),
            unused: parameters.keys().filter(|name| !is_used(name)).cloned().collect(),
        }
    }
}

fn object(model: &StoredModel, json: &str) -> Result<Map<String, Value>, HubError> {
    serde_json::from_str(json).map_err(|error| HubError::BadManifest {
        model: model.name.to_string(),
        reason: format!("its parameters are no JSON object: {error}"),
    })
}

/// One text or several, none of them empty. `None` when they are something else, or too many.
fn stop_strings(value: Option<&Value>) -> Option<Vec<String>> {
    let texts: Vec<&str> = match value {
        None => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect::<Option<_>>()?,
        Some(one) => vec![one.as_str()?],
    };
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let (most, most_bytes) = MOST_STOPS;
    let is_usable = texts.len() <= most && bytes <= most_bytes;
    is_usable.then(|| texts.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::sample::PartialSampling;
    use serde_json::json;

    use super::*;

    fn of(parameters: Value) -> Published {
        Published::of_parameters(Path::new("ollama://m:1"), parameters.as_object().unwrap())
    }

    #[test]
    fn parameters_become_recommendations() {
        let published = of(json!({
            "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repeat_penalty": 1.1, "stop": ["<|im_end|>", ""],
            "num_ctx": 4096, "num_keep": 24, "mirostat": 1
        }));
        let expected = PartialSampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: None,
            repetition_penalty: Some(1.1),
        };
        assert_eq!(published.recommended.sampling.stated, expected);
        assert_eq!(published.recommended.stop, ["<|im_end|>"]);
        assert_eq!(published.context_tokens, Some(4096));
        assert_eq!(published.unused, ["num_keep", "mirostat"]);
        assert_eq!(of(json!({ "stop": "x" })).recommended.stop, ["x"]);
        assert_eq!(of(json!({})), Published::default());
    }

    #[test]
    fn a_wrong_value_is_ignored_with_a_warning() {
        for (name, value) in [
            ("temperature", json!("hot")),
            ("stop", json!(5)),
            ("stop", json!(["a", 5])),
            ("stop", json!("x".repeat(9 << 10))),
            ("num_ctx", json!(0)),
            ("num_ctx", json!("4096")),
        ] {
            let mut published = of(json!({ name: value }));
            let warnings = std::mem::take(&mut published.recommended.sampling.warnings);
            assert_eq!(published, Published::default(), "{name} {value}");
            assert_eq!(warnings.len(), 1, "{name} {value}");
            assert!(warnings[0].contains("ollama://m:1") && warnings[0].contains(name), "{}", warnings[0]);
        }
    }
}
