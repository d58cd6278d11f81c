//! Scores: how relevant documents are to a query, or how similar texts are.
//!
//! A reranker reads a query and a document together, as one sequence, and gives the score itself. Of a model that makes embeddings,
//! the score is the cosine of the angle between two vectors.

use std::iter::repeat_n;

use cuelight_engine::embedding::{Product, Relevance, cosine, sigmoid};
use cuelight_engine::engine::TokenId;
use cuelight_engine::rerank::{Pair, PairError, PairLimits, PairPrompt, QueryEncoder};
use tokio::time::Instant;

use super::accept::ServingLimits;
use super::blocking::off_worker;
use super::embed::tokens_of;
use super::error::ApiError;
use super::prompt::{PlainPrompt, PromptField};
use super::served::Served;
use super::tenancy::Tenancy;
use super::vectors::{Requester, TextTokens, VectorRun};
use crate::core::request::SubmitError;
use crate::models::Models;
use crate::pipeline::runtime::ServedModel;

/// A text and its path in the request.
pub(crate) struct ScoredText {
    pub path: String,
    pub text: String,
}

/// What a client asks for.
pub(crate) struct ScoreRequest {
    /// The name of the model. `None`: the default.
    pub model: Option<String>,
    /// One for all documents, or one for each.
    pub queries: Vec<ScoredText>,
    /// At least one.
    pub documents: Vec<ScoredText>,
    pub options: ScoreOptions,
    pub tenancy: Tenancy,
}

/// How scores are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScoreOptions {
    /// A sequence with more tokens than this or the context is cut at the end of the document, instead of being refused.
    pub cut_at: Option<usize>,
    /// Documents are cut after this many tokens.
    pub document_tokens: Option<usize>,
    /// Leave the scores of rerankers as logits, instead of making them values from 0 to 1.
    pub keeps_logits: bool,
    /// Whether a model that makes embeddings may answer.
    pub allows_embeddings: bool,
    pub priority: i32,
}

/// The scores of a request.
pub(crate) struct Scores {
    /// The name of the model that answers carry.
    pub model_id: String,
    /// One for each document.
    pub scores: Vec<f32>,
    /// Tokens of all sequences.
    pub prompt_tokens: usize,
}

/// Leases the model, takes the permit, makes the tokens, and computes the scores. `memory` is what the body of the request holds,
/// and is dropped before the first sequence is computed.
///
/// # Errors
/// [`ApiError`] with the reason when the request is not accepted or fails.
pub(crate) async fn score(
    models: &Models,
    limits: ServingLimits,
    request: ScoreRequest,
    memory: impl Send,
) -> Result<Scores, ApiError> {
    let started = Instant::now();
    let ScoreRequest { model, queries, documents, options, tenancy } = request;
    let served = Served::lease(models, model.as_deref()).await?;
    let model = served.model()?;
    let relevance = model.card.embedding.relevance;
    if relevance.is_none() {
        check_embeds(&served.id, &model, options)?;
    }
    let sequences = documents.len() + if relevance.is_none() { queries.len() } else { 0 };
    let requester = Requester { tenancy, priority: options.priority, limits, started };
    let run = VectorRun::begin(served, model, requester, sequences)?;
    match relevance {
        Some(relevance) => rerank(run, (queries, documents), (options, relevance), memory).await,
        None => compare(run, (queries, documents), options, memory).await,
    }
}

/// Checks that a model that is no reranker makes embeddings, and may answer.
fn check_embeds(name: &str, model: &ServedModel, options: ScoreOptions) -> Result<(), ApiError> {
    let embedding = &model.card.embedding;
    let is_embedder = embedding.is_only && embedding.product() == Product::Vectors;
    if is_embedder && options.allows_embeddings {
        return Ok(());
    }
    let message = match embedding.product() {
        Product::Classes => {
            let labels = model.card.labels.len();
            format!("the model `{name}` tells {labels} labels apart and is no reranker, which has one; use /classify")
        }
        _ if is_embedder => format!("the model `{name}` is no reranker; /v1/score compares its embeddings"),
        _ => format!("the model `{name}` is no reranker"),
    };
    Err(ApiError::Unsupported { param: "model".to_owned(), message })
}

type Texts = (Vec<ScoredText>, Vec<ScoredText>);

async fn rerank(
    run: VectorRun,
    texts: Texts,
    (options, relevance): (ScoreOptions, Relevance),
    memory: impl Send,
) -> Result<Scores, ApiError> {
    let pairs = pairs_of(texts, &run, options).await?;
    let pairs = run.served.counted(pairs)?;
    drop(memory);
    let prompt_tokens = pairs.rests.iter().map(|rest| rest.shared + rest.tokens.len()).sum();
    let vectors = run.vectors(pairs.sequences()).await?;
    let score = |vector: Vec<f32>| match relevance.logit(&vector) {
        logit if options.keeps_logits => logit,
        logit => sigmoid(logit),
    };
    let scores = vectors.into_iter().map(score).collect();
    Ok(Scores { model_id: run.served.id, scores, prompt_tokens })
}

/// Sequences of queries and documents. Those of one query begin alike, so only the rest of each is stored: a long query is not
/// repeated for each of many documents.
#[derive(Default)]
struct Pairs {
    /// The first tokens of the sequences of each query.
    heads: Vec<Vec<TokenId>>,
    rests: Vec<PairRest>,
}

/// What a sequence has after the tokens that it shares.
struct PairRest {
    /// The number of the query.
    query: usize,
    /// Tokens that it shares with the head.
    shared: usize,
    tokens: Vec<TokenId>,
    second_text: Option<usize>,
}

impl Pairs {
    fn push(&mut self, query: usize, pair: &Pair) {
        let head = &self.heads[query];
        let shared = head.iter().zip(&pair.tokens).take_while(|(head, token)| head == token).count();
        let (tokens, second_text) = (pair.tokens[shared..].to_vec(), pair.second_text);
        self.rests.push(PairRest { query, shared, tokens, second_text });
    }

    fn sequences(&self) -> impl Iterator<Item = TextTokens> {
        self.rests.iter().map(|PairRest { query, shared, tokens, second_text }| {
            let tokens = [&self.heads[*query][..*shared], tokens].concat();
            TextTokens { tokens, second_text: *second_text }
        })
    }
}

/// The sequence of each document with its query.
async fn pairs_of(
    (queries, documents): Texts,
    run: &VectorRun,
    options: ScoreOptions,
) -> Result<Result<Pairs, SubmitError>, ApiError> {
    // A template is tokenised with the query again for each document.
    let of_queries = queries.iter().map(|query| query.text.len()).sum::<usize>() * (documents.len() / queries.len());
    let bytes = of_queries + documents.iter().map(|document| document.text.len()).sum::<usize>();
    let model = run.model.clone();
    let limits = PairLimits {
        tokens: options.cut_at.unwrap_or(usize::MAX).min(model.limits.context_tokens),
        document_tokens: options.document_tokens.unwrap_or(usize::MAX),
        truncates: options.cut_at.is_some(),
    };
    off_worker(bytes, move || match encode(&queries, &documents, &model, limits) {
        Ok(pairs) => Ok(Ok(pairs)),
        Err((path, error)) => refusal(path, error, &model).map(Err),
    })
    .await
}

/// What a pair that becomes no sequence means for its request: it is too long for the context, or refused for its text at `path`.
pub(super) fn refusal(path: &str, error: PairError, model: &ServedModel) -> Result<SubmitError, ApiError> {
    match error {
        PairError::TooLong { tokens, limit } if limit == model.limits.context_tokens => {
            Ok(SubmitError::ContextLengthExceeded { prompt_tokens: tokens, context_tokens: limit })
        }
        error @ (PairError::TooLong { .. } | PairError::Tokenizer(_)) => {
            Err(ApiError::invalid(path, format!("`{path}`: {error}")))
        }
        error => Err(ApiError::Unsupported { param: "model".to_owned(), message: error.to_string() }),
    }
}

/// An error comes with the path of the text that it belongs to.
fn encode<'a>(
    queries: &'a [ScoredText],
    documents: &'a [ScoredText],
    model: &ServedModel,
    limits: PairLimits,
) -> Result<Pairs, (&'a str, PairError)> {
    let prompt =
        PairPrompt::new(&model.tokenizer, model.card.rerank_template.as_deref()).map_err(|error| ("", error))?;
    let mut pairs = Pairs::default();
    // All documents belong to one query, or each to its own.
    let of_each = if queries.len() == 1 { documents.len() } else { 1 };
    for (number, (query, documents)) in queries.iter().zip(documents.chunks(of_each.max(1))).enumerate() {
        let of_query = |error| (query.path.as_str(), error);
        let encoder = QueryEncoder::new(&prompt, &model.tokenizer, &query.text).map_err(of_query)?;
        pairs.heads.push(encoder.head().to_vec());
        for ScoredText { path, text } in documents {
            pairs.push(number, &encoder.pair(text, limits).map_err(|error| (path.as_str(), error))?);
        }
    }
    Ok(pairs)
}

/// The similarity of embeddings. Each text is a sequence of its own.
async fn compare(
    run: VectorRun,
    (queries, documents): Texts,
    options: ScoreOptions,
    memory: impl Send,
) -> Result<Scores, ApiError> {
    let n_queries = queries.len();
    let n_documents = documents.len();
    let field = |ScoredText { path, text }| PromptField { path, prompt: PlainPrompt::Text(text) };
    let inputs = queries.into_iter().chain(documents).map(field).collect();
    let texts = tokens_of(inputs, &run.model, options.cut_at).await?;
    let texts = run.served.counted(texts)?;
    drop(memory);
    let prompt_tokens = texts.iter().map(|text| text.tokens.len()).sum();
    let vectors = run.vectors(texts.into_iter()).await?;
    let (queries, documents) = vectors.split_at(n_queries);
    let queries = queries.iter().flat_map(|query| repeat_n(query, n_documents / n_queries));
    let scores = queries.zip(documents).map(|(query, document)| cosine(query, document)).collect();
    Ok(Scores { model_id: run.served.id, scores, prompt_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_a_query_store_its_tokens_once() {
        let mut pairs = Pairs { heads: vec![vec![1, 2, 3]], rests: Vec::new() };
        let all = [vec![1, 2, 3, 4], vec![1, 2, 3], vec![1, 2, 9, 9, 9]];
        for tokens in &all {
            pairs.push(0, &Pair { tokens: tokens.clone(), second_text: Some(3) });
        }
        assert_eq!(pairs.rests.iter().map(|rest| rest.tokens.len()).collect::<Vec<_>>(), [1, 0, 3]);
        assert!(pairs.sequences().map(|sequence| sequence.tokens).eq(all));
    }
}
