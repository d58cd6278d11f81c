//! How a model answers when it is asked for the words in audio.

use std::sync::Arc;

use cuelight_engine::engine::EmbeddingLimits;

use super::marks::Marks;
use super::tag::TAG;
use crate::pipeline::runtime::ServedModel;

/// What a model makes of audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranscriptForm {
    /// What the text of a message asks for.
    Instructed,
    /// `language English<asr_text>`, then the text. The model takes no instructions (Qwen 3 ASR).
    Tagged,
    /// Words between tokens, of a window. The model has learnt nothing else (Whisper).
    Marked(Arc<Marks>),
}

impl TranscriptForm {
    /// The form of a model.
    pub fn of(model: &ServedModel) -> Self {
        let EmbeddingLimits { leading_rows, .. } = model.limits.embeddings.unwrap_or_default();
        let marks = (leading_rows > 0).then(|| Marks::of(&model.tokenizer, leading_rows)).flatten();
        match (marks, model.tokenizer.encode(TAG, false, true).as_deref()) {
            (Some(marks), _) => TranscriptForm::Marked(Arc::new(marks)),
            (None, Ok([_])) => TranscriptForm::Tagged,
            (None, _) => TranscriptForm::Instructed,
        }
    }
}
