//! `POST /debug/fault`: makes the next step fail. Built only for tests.

use axum::http::StatusCode;

use super::extract::JsonBody;
use super::fields::Fields;
use crate::pipeline::faults::Fault;
use crate::serving::error::ApiError;

pub(super) async fn fault(JsonBody { value: body, .. }: JsonBody) -> Result<StatusCode, ApiError> {
    let fields = Fields::of_body(&body)?;
    let kind = fields.string("kind")?.unwrap_or_default();
    let fault = Fault::named(kind)
        .ok_or_else(|| ApiError::invalid("kind", "`kind` must name a fault of `actors/pipeline/faults.rs`"))?;
    fault.arm();
    Ok(StatusCode::NO_CONTENT)
}
