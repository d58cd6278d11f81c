//! `POST /v1/rerank`: documents in the order of their relevance to a query, with the fields of Jina, Cohere and vLLM. A request
//! with `texts` instead of `documents` is one of Text Embeddings Inference.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::fields::{keeps_logits, priority};
use super::order::{Ordered, Ordering};
use super::tei;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::api::truncation;
use crate::serving::error::ApiError;
use crate::serving::score::ScoreOptions;

/// Where Cohere cuts documents if a request does not say.
const COHERE_DOCUMENT_TOKENS: usize = 4096;

/// Jina's, vLLM's and Cohere's first protocol, or that of Text Embeddings Inference.
pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body.value)?;
    if fields.get("texts").is_some() {
        return tei::rerank(server, caller, body).await;
    }
    let document_tokens = document_tokens(&fields)?;
    // A client that says where documents are cut also wants the others cut that do not fit.
    let options = options(&fields, document_tokens, document_tokens.is_some())?;
    let returns_documents = fields.bool("return_documents")?.unwrap_or(true);
    run(server, caller, body, (options, returns_documents)).await
}

/// Cohere's second protocol: documents that are too long are cut, and are not returned.
pub(super) async fn create_second(
    State(server): State<SharedServer>,
    caller: Caller,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body.value)?;
    let document_tokens = document_tokens(&fields)?.unwrap_or(COHERE_DOCUMENT_TOKENS);
    let options = options(&fields, Some(document_tokens), true)?;
    let returns_documents = fields.bool("return_documents")?.unwrap_or(false);
    run(server, caller, body, (options, returns_documents)).await
}

fn document_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    fields.count("max_tokens_per_doc", 1)
}

fn options(
    fields: &Fields<'_>,
    document_tokens: Option<usize>,
    cuts_at_context: bool,
) -> Result<ScoreOptions, ApiError> {
    for name in ["rank_fields", "max_chunks_per_doc"] {
        if fields.get(name).is_some() {
            let message = format!("`{name}` is not supported: each document is one text");
            return Err(ApiError::Unsupported { param: name.to_owned(), message });
        }
    }
    Ok(ScoreOptions {
        cut_at: truncation::read(fields)?.or(cuts_at_context.then_some(usize::MAX)),
        document_tokens,
        keeps_logits: keeps_logits(fields)?,
        allows_embeddings: false,
        priority: priority(fields)?,
    })
}

async fn run(
    server: SharedServer,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
    options: (ScoreOptions, bool),
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    // vLLM's default is 0, which stands for all.
    let top_n = fields.count("top_n", 0)?.filter(|top_n| *top_n > 0);
    let ordering = Ordering::read((&server, &caller), &fields, "documents", options)?;
    drop(body);
    Ok(Json(response(&ordering.run(&server, memory).await?, top_n)))
}

fn response(ordered: &Ordered, top_n: Option<usize>) -> Value {
    let result = |(index, score): &(usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if let Some(texts) = &ordered.texts {
            result["document"] = json!({ "text": texts[*index] });
        }
        result
    };
    let best = ordered.ranked.iter().take(top_n.unwrap_or(usize::MAX));
    let tokens = ordered.prompt_tokens;
    json!({
        "id": format!("rerank-{}", uuid::Uuid::new_v4().simple()),
        "object": "list",
        "model": ordered.model_id,
        "results": best.map(result).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_limited_and_may_have_their_documents() {
        let texts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let ranked = vec![(1, 0.75), (2, 0.5), (0, 0.25)];
        let ordered = Ordered { model_id: "m".into(), ranked, texts: Some(texts), prompt_tokens: 9 };
        let answer = response(&ordered, Some(2));
        let expected = json!([
            { "index": 1, "relevance_score": 0.75, "document": { "text": "b" } },
            { "index": 2, "relevance_score": 0.5, "document": { "text": "c" } },
        ]);
        assert_eq!(answer["results"], expected);
        assert_eq!(answer["usage"], json!({ "prompt_tokens": 9, "total_tokens": 9 }));
        let all = response(&Ordered { texts: None, ..ordered }, None);
        assert_eq!(all["results"].as_array().map(Vec::len), Some(3));
        assert_eq!(all["results"][0], json!({ "index": 1, "relevance_score": 0.75 }));
    }
}
