//! Runs a request and answers it, whole or as a stream.

use axum::Json;
use axum::response::{IntoResponse, Response};

use super::answer::{AnswerEncoder, ChoiceState};
use super::probabilities::Probabilities;
use super::response_fields::ResponseFields;
use crate::api::reports::Reports;
use crate::api::server::Server;
use crate::api::sse;
use crate::serving::accept::{Accepted, accept};
use crate::serving::error::ApiError;
use crate::serving::memory::RequestBudget;
use crate::serving::request::ServingRequest;

/// The response to `request`. `memory` is what its body holds.
///
/// # Errors
/// [`ApiError`] with the reason when the request is not accepted, or fails before its whole answer is there.
pub(super) async fn respond(
    server: &Server,
    request: ServingRequest,
    response_fields: ResponseFields,
    memory: impl RequestBudget,
) -> Result<Response, ApiError> {
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let Accepted { model_id, model, prompts, options, answers } = accepted;
    let is_streamed = options.stream.is_some();
    let encoder = AnswerEncoder {
        reports: Reports::new(options.reports, prompts.len()),
        model: model_id,
        options,
        response_fields,
        probabilities: Probabilities { tokenizer: model.tokenizer.clone() },
        choices: prompts.iter().map(ChoiceState::new).collect(),
    };
    if is_streamed {
        return Ok(sse::stream(answers, encoder, server.options().sse_ping_interval));
    }
    Ok(Json(encoder.whole(answers.collect().await?)).into_response())
}
