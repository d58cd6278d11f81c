//! Classification: from texts, or pairs of texts, to the scores of a model's classes. Each is a sequence of its own.

use std::sync::Arc;

use cuelight_engine::embedding::{ClassScores, Product};
use cuelight_engine::rerank::{PairLimits, PairPrompt, QueryEncoder};
use tokio::time::Instant;

use super::accept::ServingLimits;
use super::blocking::off_worker;
use super::embed::text_tokens;
use super::error::ApiError;
use super::prompt::PromptField;
use super::score::{ScoredText, refusal};
use super::served::Served;
use super::tenancy::Tenancy;
use super::vectors::{Requester, TextTokens, VectorRun};
use crate::core::request::SubmitError;
use crate::models::Models;
use crate::pipeline::runtime::ServedModel;

/// A text to classify, or two that are read together.
pub(crate) enum ClassifiedText {
    One(PromptField),
    Pair([ScoredText; 2]),
}

impl ClassifiedText {
    fn bytes(&self) -> usize {
        match self {
            ClassifiedText::One(text) => text.bytes(),
            ClassifiedText::Pair(texts) => texts.iter().map(|text| text.text.len()).sum(),
        }
    }
}

/// What a client asks for.
pub(crate) struct ClassifyRequest {
    /// The name of the model. `None`: the default.
    pub model: Option<String>,
    /// At least one.
    pub texts: Vec<ClassifiedText>,
    pub options: ClassifyOptions,
    pub tenancy: Tenancy,
}

/// How texts are classified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClassifyOptions {
    /// Cut texts that have more tokens than this or than the context, instead of refusing them. Of two texts, the second is cut.
    pub cut_at: Option<usize>,
    /// Leave the scores as logits, instead of making them probabilities.
    pub keeps_logits: bool,
    pub priority: i32,
}

/// The classes of a request's texts.
pub(crate) struct Classified {
    /// The name of the model that answers carry.
    pub model_id: String,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// For each text, the score of each class.
    pub scores: Vec<Vec<f32>>,
    /// Tokens of all sequences.
    pub prompt_tokens: usize,
}

/// Leases the model, takes the permit, makes the tokens, and computes the scores. `memory` is what the body of the request holds,
/// and is dropped before the first text is computed.
///
/// # Errors
/// [`ApiError`] with the reason when the request is not accepted or fails.
pub(crate) async fn classify(
    models: &Models,
    limits: ServingLimits,
    request: ClassifyRequest,
    memory: impl Send,
) -> Result<Classified, ApiError> {
    let started = Instant::now();
    let ClassifyRequest { model, texts, options, tenancy } = request;
    let served = Served::lease(models, model.as_deref()).await?;
    let model = served.model()?;
    let classes = check(&served.id, &model)?;
    let requester = Requester { tenancy, priority: options.priority, limits, started };
    let run = VectorRun::begin(served, model, requester, texts.len())?;
    let sequences = tokens_of(texts, &run.model, options.cut_at).await?;
    let sequences = run.served.counted(sequences)?;
    drop(memory);
    let prompt_tokens = sequences.iter().map(|text| text.tokens.len()).sum();
    let vectors = run.vectors(sequences.into_iter()).await?;
    let of_text = |logits: Vec<f32>| if options.keeps_logits { logits } else { classes.of(&logits) };
    let scores = vectors.into_iter().map(of_text).collect();
    let labels = run.model.card.labels.clone();
    Ok(Classified { model_id: run.served.id, labels, scores, prompt_tokens })
}

/// Checks that the model tells classes, and says how their logits become scores.
fn check(name: &str, model: &ServedModel) -> Result<ClassScores, ApiError> {
    let embedding = &model.card.embedding;
    embedding.classes.ok_or_else(|| {
        let message = match embedding.product() {
            Product::Relevance => {
                format!("the model `{name}` is a reranker that answers yes or no, and no classifier; use /v1/rerank")
            }
            _ if embedding.is_only => {
                format!("the model `{name}` makes embeddings and is no classifier; use /v1/embeddings")
            }
            _ => format!("the model `{name}` is no classifier"),
        };
        ApiError::Unsupported { param: "model".to_owned(), message }
    })
}

/// The sequence of each text.
async fn tokens_of(
    texts: Vec<ClassifiedText>,
    model: &Arc<ServedModel>,
    cut_at: Option<usize>,
) -> Result<Result<Vec<TextTokens>, SubmitError>, ApiError> {
    let model = model.clone();
    let bytes = texts.iter().map(ClassifiedText::bytes).sum();
    let read = move || {
        let mut sequences = Vec::with_capacity(texts.len());
        for text in &texts {
            let sequence = match text {
                ClassifiedText::One(text) => text_tokens(text, &model, cut_at)?,
                ClassifiedText::Pair(texts) => pair_tokens(texts, &model, cut_at)?,
            };
            match sequence {
                Ok(sequence) => sequences.push(sequence),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(sequences))
    };
    off_worker(bytes, read).await
}

/// The sequence of two texts.
fn pair_tokens(
    [first, second]: &[ScoredText; 2],
    model: &ServedModel,
    cut_at: Option<usize>,
) -> Result<Result<TextTokens, SubmitError>, ApiError> {
    let limits = PairLimits {
        tokens: cut_at.unwrap_or(usize::MAX).min(model.limits.context_tokens),
        document_tokens: usize::MAX,
        truncates: cut_at.is_some(),
    };
    let pair = PairPrompt::new(&model.tokenizer, model.card.rerank_template.as_deref())
        .and_then(|prompt| QueryEncoder::new(&prompt, &model.tokenizer, &first.text)?.pair(&second.text, limits));
    match pair {
        Ok(pair) => Ok(Ok(TextTokens { tokens: pair.tokens, second_text: pair.second_text })),
        Err(error) => refusal(&second.path, error, model).map(Err),
    }
}
