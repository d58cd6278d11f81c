//! Routes of rerankers and classifiers: [`rerank`] orders documents as Jina, Cohere and vLLM do, [`score`] rates pairs of texts
//! as vLLM does, and [`tei`] is what Text Embeddings Inference answers to the same and to texts that become vectors. [`classify`]
//! tells the classes of texts as vLLM does, and [`predict`] as Text Embeddings Inference does. [`fields`] and [`order`] are what
//! they share.

mod classify;
mod fields;
mod order;
mod predict;
mod rerank;
mod score;
mod tei;

use axum::Router;
use axum::routing::post;

use super::server::SharedServer;

/// Every route.
pub(super) fn routes() -> Router<SharedServer> {
    Router::new()
        .route("/v1/rerank", post(rerank::create))
        .route("/v2/rerank", post(rerank::create_second))
        .route("/rerank", post(rerank::create))
        // For clients of llama.cpp.
        .route("/v1/reranking", post(rerank::create))
        .route("/reranking", post(rerank::create))
        .route("/v1/score", post(score::create))
        .route("/score", post(score::create))
        .route("/embed", post(tei::embed))
        .route("/classify", post(classify::create))
        .route("/v1/classify", post(classify::create))
        .route("/predict", post(predict::create))
}
