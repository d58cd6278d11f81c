//! `POST /tokenize` and `/detokenize`, in the words of vLLM (`prompt`, `messages`, `add_special_tokens`) and of
//! llama.cpp (`content`, `add_special`, `with_pieces`).

use axum::Json;
use axum::extract::State;
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::SharedServer;
use super::error::ApiError;
use super::extract::JsonBody;
use super::fields::{Fields, missing};
use super::prompt::{ChatPrompt, chat_tokens, check_vocabulary, off_worker};

pub(super) async fn tokenize(
    State(server): State<SharedServer>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let served = server.served(fields.string("model")?).await?;
    let model = served.model()?;
    let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    let with_strings = fields.bool("return_token_strs")?.unwrap_or(false);

    let tokens = if fields.get("messages").is_some() {
        chat_tokens(ChatPrompt::read(&fields)?, &model).await?
    } else {
        let text = PlainText::read(&fields)?;
        let model = model.clone();
        off_worker(text.text.len(), move || text.tokens(&model.tokenizer)).await?
    };

    let tokenizer = &model.tokenizer;
    let mut response = json!({ "count": tokens.len(), "max_model_len": model.limits.context_tokens });
    if with_strings {
        response["token_strs"] = tokens.iter().map(|&token| json!(tokenizer.token_text(token))).collect();
    }
    response["tokens"] = if with_pieces {
        tokens.iter().map(|&token| json!({ "id": token, "piece": piece(tokenizer, token) })).collect()
    } else {
        json!(tokens)
    };
    Ok(Json(response))
}

pub(super) async fn detokenize(
    State(server): State<SharedServer>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let served = server.served(fields.string("model")?).await?;
    let model = served.model()?;
    let tokens = fields.token_ids("tokens")?.ok_or_else(|| missing("tokens", "a list of token ids"))?;
    let skip_special = fields.bool("skip_special_tokens")?.unwrap_or(false);
    check_vocabulary(&tokens, "tokens", &model)?;
    let text = off_worker(tokens.len(), move || Ok(model.tokenizer.decode(&tokens, skip_special))).await?;
    Ok(Json(json!({ "prompt": text, "content": text })))
}

/// A text to tokenise as it stands.
struct PlainText {
    text: String,
    add_special: bool,
    parse_special: bool,
}

impl PlainText {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        // Each of the two dialects comes with its own default.
        let (text, adds_special) = match (fields.string("prompt")?, fields.string("content")?) {
            (Some(prompt), _) => (prompt, true),
            (None, Some(content)) => (content, false),
            (None, None) => return Err(missing("prompt", "a string; or send `content` or `messages`")),
        };
        Ok(PlainText {
            text: text.to_owned(),
            add_special: fields.bool("add_special_tokens")?.or(fields.bool("add_special")?).unwrap_or(adds_special),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        })
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, ApiError> {
        tokenizer
            .encode(&self.text, self.add_special, self.parse_special)
            .map_err(|error| ApiError::invalid_body(format!("the text cannot be tokenised: {error}")))
    }
}

/// A token's text, or its bytes when they are only part of a character.
fn piece(tokenizer: &Tokenizer, token: TokenId) -> Value {
    let bytes = tokenizer.token_bytes(token, false);
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}
