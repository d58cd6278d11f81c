//! What chat and generate share: they load a model, keep it, and answer with its text.

use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::answer::{Encoder, Form, empty};
use super::think::Think;
use super::{keep_alive, names, ndjson};
use crate::api::fields::Fields;
use crate::api::server::Server;
use crate::models::KeepAlive;
use crate::pipeline::runtime::ServedModel;
use crate::serving::accept::{accept, find_output_rules};
use crate::serving::error::ApiError;
use crate::serving::memory::RequestBudget;
use crate::serving::request::ServingRequest;

/// A request, as far as it does not concern the text.
pub(super) struct Call {
    form: Form,
    /// The model's name as the client wrote it.
    name: String,
    /// The model's id.
    pub id: String,
    pub think: Think,
    keep_alive: Option<KeepAlive>,
    is_streamed: bool,
    started: Instant,
}

impl Call {
    /// Reads the fields that both protocols have, and finds the model.
    ///
    /// # Errors
    /// [`ApiError`] when a field is invalid or there is no such model.
    pub async fn read(server: &Server, fields: &Fields<'_>, form: Form) -> Result<Self, ApiError> {
        let started = Instant::now();
        let name = names::named(fields)?;
        let think = Think::read(fields)?;
        let keep_alive = keep_alive::read(fields)?;
        let is_streamed = fields.bool("stream")?.unwrap_or(true);
        let id = names::find(&server.models, name).await?.id;
        Ok(Call { form, name: name.to_owned(), id, think, keep_alive, is_streamed, started })
    }

    /// Whether the model has a chat template. Waits while the model is being loaded.
    ///
    /// # Errors
    /// [`ApiError::Model`].
    pub async fn has_template(&self, server: &Server) -> Result<bool, ApiError> {
        Ok(server.served(Some(&self.id)).await?.model()?.chat_template.is_some())
    }

    /// Answers a request without a prompt: loads the model, or unloads it when it is not to be kept.
    ///
    /// # Errors
    /// [`ApiError::Model`].
    pub async fn load(self, server: &Server) -> Result<Response, ApiError> {
        let reason = if self.keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
            server.models.unload(&self.id, server.options().drain_timeout).await?;
            "unload"
        } else {
            let _served = server.served(Some(&self.id)).await?;
            self.keep(server).await?;
            "load"
        };
        let mut object = empty(self.form, &self.name);
        object["done"] = json!(true);
        object["done_reason"] = json!(reason);
        Ok(Json(object).into_response())
    }

    /// Runs a request and answers with what is generated.
    ///
    /// # Errors
    /// [`ApiError`] when the request is not accepted, or when it fails and is not streamed.
    pub async fn answer(
        self,
        server: &Server,
        request: ServingRequest,
        context_tokens: Option<usize>,
        memory: impl RequestBudget,
    ) -> Result<Response, ApiError> {
        if self.think.is_required {
            self.check_reasoning(server).await?;
        }
        let accepted = accept(&server.models, server.limits(), request, memory).await?;
        self.keep(server).await?;
        note_context(context_tokens, &accepted.model);
        let encoder = Encoder {
            form: self.form,
            model: self.name,
            tokenizer: accepted.model.tokenizer.clone(),
            started: self.started,
            load_time: self.started.elapsed(),
            open: None,
        };
        if self.is_streamed {
            return Ok(ndjson::stream(accepted.answers, encoder));
        }
        let answers = accepted.answers.collect().await?;
        let objects = answers.into_iter().next().map(|answer| encoder.whole(answer));
        Ok(Json(objects).into_response())
    }

    /// Applies `keep_alive` to the loaded model.
    async fn keep(&self, server: &Server) -> Result<(), ApiError> {
        match self.keep_alive {
            Some(keep_alive) => Ok(server.models.set_keep_alive(&self.id, keep_alive).await?),
            None => Ok(()),
        }
    }

    async fn check_reasoning(&self, server: &Server) -> Result<(), ApiError> {
        let served = server.served(Some(&self.id)).await?;
        let rules = find_output_rules(&served.model()?).await?;
        if rules.format.has_reasoning() {
            return Ok(());
        }
        let message = format!("\"{}\" does not support thinking; leave out `think` or set it to false", self.name);
        Err(ApiError::Unsupported { param: "think".to_owned(), message })
    }
}

/// The context is set when the server starts, so a longer one is not possible and a shorter one has no use.
fn note_context(asked: Option<usize>, model: &ServedModel) {
    let context_tokens = model.limits.context_tokens;
    if let Some(asked) = asked.filter(|asked| *asked > context_tokens) {
        tracing::info!(
            asked,
            context_tokens,
            model = model.card.name,
            "num_ctx is larger than the context of the model"
        );
    }
}
