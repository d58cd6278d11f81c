//! Models that give a text the scores of classes instead of a vector, which the config states by its architecture. With one class
//! they are rerankers.

use serde_json::Value as Json;

use super::config::Config;
use super::error::HuggingFaceError;
use super::families::CLASSIFIES;
use super::family::Family;
use super::keys::Keys;

/// The end of the names of architectures that classify texts.
const CLASSIFIER: &str = "ForSequenceClassification";

/// The value of the key `pooling_type` of models that classify texts.
const RANK: u32 = 4;

/// The key of the prompt of a reranker.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// The names of the rows that a head reads, and their numbers in GGUF files.
const POOLINGS: [(&str, u32); 2] = [("mean", 1), ("cls", 2)];

/// Adds whether the model classifies texts.
pub(super) fn describe(config: &mut Config) -> Result<(), HuggingFaceError> {
    let mut architectures = config.list("architectures")?.into_iter().flatten().filter_map(Json::as_str);
    if architectures.any(|name| name.ends_with(CLASSIFIER)) {
        config.set(CLASSIFIES, true.into());
    }
    Ok(())
}

impl Keys<'_> {
    /// Adds the keys of a model that classifies texts.
    pub(super) fn classifier(&mut self, family: &Family) -> Result<(), HuggingFaceError> {
        self.ranks(None);
        let labels = labels(self.config)?;
        if let Some(labels) = &labels {
            self.add("classifier.output_labels", &labels[..]);
        }
        if let Some(problem) = self.config.str("problem_type")? {
            self.add("classifier.problem_type", problem);
        }
        if let Some(found) = self.config.str("classifier_pooling")? {
            let pooling = POOLINGS.iter().find(|(name, _)| *name == found);
            let wrong = || self.config.wrong("classifier_pooling", format!("{found:?}"), "\"cls\" or \"mean\"");
            self.add("classifier.pooling_type", pooling.ok_or_else(wrong)?.1);
        }
        let count = labels.map(|labels| labels.len() as u64);
        let count = count.or_else(|| self.config.get("num_labels").and_then(Json::as_u64));
        if let Some(template) = family.rerank_template.filter(|_| count == Some(1)) {
            self.add_whole(TEMPLATE, template);
        }
        Ok(())
    }

    /// Adds that the model has a head, and the prompt of a reranker.
    pub(super) fn ranks(&mut self, template: Option<&str>) {
        self.replace("pooling_type", RANK);
        if let Some(template) = template {
            self.add_whole(TEMPLATE, template);
        }
    }
}

/// The names of the classes by their numbers; `None` if the config has none.
fn labels(config: &Config) -> Result<Option<Vec<String>>, HuggingFaceError> {
    const KEY: &str = "id2label";
    let Some(stated) = config.get(KEY) else { return Ok(None) };
    let wrong = || config.wrong(KEY, stated, "an object with a name for each number from 0");
    let stated_labels = stated.as_object().filter(|labels| !labels.is_empty()).ok_or_else(wrong)?;
    let label = |class: usize| match stated_labels.get(&class.to_string()) {
        Some(Json::String(name)) => Ok(name.clone()),
        // Some configs have numbers or words without quotes for names.
        Some(other) if !other.is_object() && !other.is_array() => Ok(other.to_string()),
        _ => Err(wrong()),
    };
    (0..stated_labels.len()).map(label).collect::<Result<_, _>>().map(Some)
}
