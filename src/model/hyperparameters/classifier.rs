//! The head of a model that classifies texts: which tokens it reads, its classes, and how their logits become scores.

use super::keys::Keys;
use super::{POOLING, RANK};
use crate::embedding::{ClassScores, Pooling, Relevance};
use crate::model::arch::{ClassifierHead, Family};
use crate::model::error::ModelError;

/// The tensor that gives the logits of classes, or the logit of a reranker.
pub(in crate::model) const CLASSIFIER: &str = "cls.output.weight";

/// Most classes. A larger number means a damaged file.
const MOST_CLASSES: usize = 1 << 16;

/// What a model tells about a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifierSpec {
    /// The row that gives the logits.
    pub rows: Pooling,
    /// Whether it reads the mean of all rows instead of its own.
    pub reads_mean: bool,
    /// How the logits rate the relevance of a document, if they do.
    pub relevance: Option<Relevance>,
    /// How the logits become the scores of classes; `None` if they are answers to a prompt.
    pub classes: Option<ClassScores>,
    /// The names of the classes, one for each logit.
    pub labels: Vec<String>,
}

impl Keys<'_> {
    /// Files of classifiers do not always say that they are some, but have the tensor.
    pub(super) fn classifier(&self, family: &Family) -> Result<Option<ClassifierSpec>, ModelError> {
        let has_head = self.checkpoint.tensor(CLASSIFIER).is_some();
        match self.checkpoint.optional_u32(&self.name(POOLING))? {
            Some(RANK) => {}
            None | Some(0) if has_head => {}
            _ => return Ok(None),
        }
        let count = self.checkpoint.weight(CLASSIFIER)?.rows;
        let labels = self.labels(count)?;
        let has_prompt = self.checkpoint.value("tokenizer.chat_template.rerank").is_some();
        let relevance = match (count, &labels[..]) {
            (1, _) => Some(Relevance::Logit),
            (2, [yes, no]) if yes == "yes" && no == "no" && has_prompt => Some(Relevance::YesOrNo),
            _ => None,
        };
        let classes = if relevance == Some(Relevance::YesOrNo) { None } else { Some(self.class_scores(count)?) };
        let (rows, reads_mean) = self.classified_rows(family)?;
        Ok(Some(ClassifierSpec { rows, reads_mean, relevance, classes, labels }))
    }

    /// The names of `count` classes. Those that a file leaves out are numbered, as in transformers.
    fn labels(&self, count: usize) -> Result<Vec<String>, ModelError> {
        const KEY: &str = "classifier.output_labels";
        if count > MOST_CLASSES {
            return Err(self.invalid(KEY, count, format!("at most {MOST_CLASSES}")));
        }
        let name = self.name(KEY);
        if self.checkpoint.value(&name).is_none() {
            return Ok((0..count).map(|class| format!("LABEL_{class}")).collect());
        }
        let labels: Vec<String> = self.checkpoint.strings(&name)?.map(str::to_owned).collect();
        if labels.len() != count {
            return Err(self.invalid(
                KEY,
                format!("{} labels", labels.len()),
                format!("one for each of {count} logits"),
            ));
        }
        Ok(labels)
    }

    /// How the logits of `count` classes become scores.
    fn class_scores(&self, count: usize) -> Result<ClassScores, ModelError> {
        const KEY: &str = "classifier.problem_type";
        match self.checkpoint.optional_str(&self.name(KEY))? {
            None if count > 1 => Ok(ClassScores::Softmax),
            Some("single_label_classification") if count > 1 => Ok(ClassScores::Softmax),
            None | Some("multi_label_classification" | "single_label_classification") => Ok(ClassScores::Sigmoid),
            Some("regression") => Ok(ClassScores::Logits),
            Some(other) => {
                let known = "\"single_label_classification\", \"multi_label_classification\" or \"regression\"";
                Err(self.invalid(KEY, format!("{other:?}"), known))
            }
        }
    }

    /// The row that gives the logits, and whether it reads the mean of all. The first token of an encoder is there to stand for the
    /// text. Of a decoder, the last token alone has seen it.
    fn classified_rows(&self, family: &Family) -> Result<(Pooling, bool), ModelError> {
        const KEY: &str = "classifier.pooling_type";
        let stated = self.checkpoint.optional_u32(&self.name(KEY))?;
        if !family.output.is_embedding_only() {
            return match stated {
                None | Some(3) => Ok((Pooling::Last, false)),
                Some(other) => {
                    Err(self.invalid(KEY, other, "3 (last token): a decoder's other tokens have not seen the text"))
                }
            };
        }
        match stated {
            None => Ok((Pooling::First, family.classifier == ClassifierHead::GeluOfMean)),
            Some(1) => Ok((Pooling::First, true)),
            Some(2) => Ok((Pooling::First, false)),
            Some(3) => Ok((Pooling::Last, false)),
            Some(other) => Err(self.invalid(KEY, other, "1 (mean), 2 (first token) or 3 (last token)")),
        }
    }
}
