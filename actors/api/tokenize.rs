//! `/tokenize`, `/detokenize` and `/tokenizer_info`, with the fields of vLLM (`prompt`, `messages`, `add_special_tokens`)
//! and of llama.cpp (`content`, `add_special`, `with_pieces`).

use axum::Json;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::caller::Caller;
use super::extract::JsonBody;
use super::fields::{Fields, missing};
use super::openai::prompt::read_chat;
use super::server::SharedServer;
use crate::serving::blocking::off_worker;
use crate::serving::error::ApiError;
use crate::serving::prompt::check_vocabulary;

pub(super) async fn tokenize(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let served = server.served(fields.string("model")?).await?;
    let _permit = served.runtime.try_permit_for(caller.client(), 1)?;
    let model = served.model()?;
    let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    let with_strings = fields.bool("return_token_strs")?.unwrap_or(false);

    let tokens = if fields.get("messages").is_some() {
        read_chat(&fields)?.tokens_of_text(&model).await?
    } else {
        let text = PlainText::read(&fields)?;
        let model = model.clone();
        off_worker(text.text.len(), move || text.tokens(&model.tokenizer)).await?
    };
    drop(body);

    let count = tokens.len();
    memory.grow(count * if with_pieces || with_strings { RESPONSE_BYTES } else { RESPONSE_BYTES / 4 })?;
    let write = move || {
        let tokenizer = &*model.tokenizer;
        let response = Tokenized {
            count,
            max_model_len: model.limits.context_tokens,
            token_strs: with_strings.then(|| Listed(&tokens, |token| tokenizer.token_text(token))),
            pieces: with_pieces.then(|| Listed(&tokens, |token| Piece::of(tokenizer, token))),
            tokens: (!with_pieces).then_some(&tokens),
        };
        let body = serde_json::to_vec(&response).map_err(|_| ApiError::Internal)?;
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    };
    off_worker(count, write).await
}

/// Bytes of the response for each token, with its text. While the response grows, the old and the new buffer exist.
const RESPONSE_BYTES: usize = 128;

/// The response. Lists are written while they are made, because a text may have millions of tokens.
#[derive(Serialize)]
struct Tokenized<'a, S: Serialize, P: Serialize> {
    count: usize,
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<S>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<&'a [TokenId]>,
    #[serde(rename = "tokens", skip_serializing_if = "Option::is_none")]
    pieces: Option<P>,
}

/// Serializes what a function makes of each token.
struct Listed<'a, F>(&'a [TokenId], F);

impl<T: Serialize, F: Fn(TokenId) -> T> Serialize for Listed<'_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&token| (self.1)(token)))
    }
}

/// A token and its text.
#[derive(Serialize)]
struct Piece<'a> {
    id: TokenId,
    piece: PieceText<'a>,
}

/// A token's text, or its bytes when they are an incomplete character.
#[derive(Serialize)]
#[serde(untagged)]
enum PieceText<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Piece<'a> {
    fn of(tokenizer: &'a Tokenizer, id: TokenId) -> Self {
        let bytes = tokenizer.token_bytes(id, false);
        Piece { id, piece: std::str::from_utf8(bytes).map_or(PieceText::Bytes(bytes), PieceText::Text) }
    }
}

pub(super) async fn detokenize(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let served = server.served(fields.string("model")?).await?;
    let _permit = served.runtime.try_permit_for(caller.client(), 1)?;
    let model = served.model()?;
    let tokens = fields.token_ids("tokens")?.ok_or_else(|| missing("tokens", "a list of token ids"))?;
    let skip_special = fields.bool("skip_special_tokens")?.unwrap_or(false);
    check_vocabulary(&tokens, "tokens", &model)?;
    drop(body);
    let bytes: usize = tokens.iter().map(|&token| model.tokenizer.token_bytes(token, false).len()).sum();
    // The text exists three times: decoded, and twice in the response.
    memory.grow(3 * bytes)?;
    let text = off_worker(tokens.len(), move || Ok(model.tokenizer.decode(&tokens, skip_special))).await?;
    Ok(Json(json!({ "prompt": text, "content": text })))
}

/// `GET /tokenizer_info`: the special tokens and the chat template, with the names of Hugging Face's
/// `tokenizer_config.json`, as in vLLM. `?model=` names the model.
pub(super) async fn info(
    State(server): State<SharedServer>,
    Query(query): Query<InfoQuery>,
) -> Result<Json<Value>, ApiError> {
    let served = server.served(query.model.as_deref()).await?;
    let model = served.model()?;
    let tokenizer = &model.tokenizer;
    let text = |token: Option<TokenId>| token.map(|token| tokenizer.token_text(token));
    Ok(Json(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(tokenizer.bos()),
        "bos_token_id": tokenizer.bos(),
        "eos_token": text(tokenizer.eos()),
        "eos_token_id": tokenizer.eos(),
        "pad_token": null,
        "chat_template": model.chat_template.as_ref().map(|template| template.source()),
        "model_max_length": model.limits.context_tokens,
        "vocab_size": tokenizer.vocab_size(),
    })))
}

/// The query of `/tokenizer_info`.
#[derive(serde::Deserialize)]
pub(super) struct InfoQuery {
    model: Option<String>,
}

/// A text to tokenise without a chat template.
struct PlainText {
    text: String,
    add_special: bool,
    parse_special: bool,
}

impl PlainText {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        // vLLM and llama.cpp have different defaults.
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
