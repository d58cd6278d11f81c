//! A form with a file as the body of a request (`multipart/form-data`).
//!
//! A page of another site may send such a form without asking; the check of its origin refuses it before.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use multer::Multipart;
use serde_json::{Map, Value, json};

use super::caller::Caller;
use super::extract::{check_encoding, read, text};
use super::request_memory::{RequestMemory, Reservation};
use super::server::SharedServer;
use crate::serving::error::{ApiError, clip};

/// A form.
pub(super) struct FormBody {
    /// An object with the fields: numbers, booleans and `null` as such, all others as texts. A field whose name ends with `[]` is a
    /// list of all that were sent.
    pub value: Value,
    /// The file of the field `file`.
    pub file: Option<Vec<u8>>,
    /// The memory of the body. To be dropped with the file.
    pub memory: Reservation,
}

/// The body and the file in it.
const COPIES: usize = 2;

/// The field with the file.
const FILE: &str = "file";

impl FromRequest<SharedServer> for FormBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &SharedServer) -> Result<Self, ApiError> {
        check_encoding(request.headers())?;
        let content_type = text(request.headers(), header::CONTENT_TYPE).unwrap_or_default().into_owned();
        let boundary = multer::parse_boundary(&content_type).map_err(|_| {
            ApiError::UnsupportedMediaType(format!(
                "the content type must be `multipart/form-data` with a boundary, not `{}`",
                clip(&content_type)
            ))
        })?;
        let (mut parts, body) = request.into_parts();
        let Ok(caller) = Caller::from_request_parts(&mut parts, server).await;
        let mut memory = RequestMemory::reserve(&server.request_memory, caller.client());
        let bytes = read(body, &server.options(), (&mut memory, COPIES)).await?;
        let (value, file) = parse(bytes, boundary).await?;
        Ok(FormBody { value, file, memory })
    }
}

/// The fields of a form, and its file.
async fn parse(bytes: Vec<u8>, boundary: String) -> Result<(Value, Option<Vec<u8>>), ApiError> {
    let invalid = |error: multer::Error| ApiError::invalid_body(format!("the form cannot be read: {error}"));
    let whole = futures_util::stream::once(async { Ok::<_, std::convert::Infallible>(bytes) });
    let mut form = Multipart::new(whole, boundary);
    let (mut fields, mut file) = (Map::new(), None);
    while let Some(field) = form.next_field().await.map_err(invalid)? {
        let name = field.name().unwrap_or_default().to_owned();
        if name == FILE {
            file = Some(field.bytes().await.map_err(invalid)?.to_vec());
            continue;
        }
        let value = typed(field.text().await.map_err(invalid)?);
        match fields.get_mut(&name) {
            Some(Value::Array(list)) if name.ends_with("[]") => list.push(value),
            _ if name.ends_with("[]") => _ = fields.insert(name, json!([value])),
            _ => _ = fields.insert(name, value),
        }
    }
    Ok((Value::Object(fields), file))
}

/// A number, a boolean or `null` as such, another text as it is.
fn typed(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => value,
        _ => json!(text),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fields_have_their_types_and_the_file_is_apart() {
        let part =
            |head: &str, content: &str| format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
        let form = [
            part("name=\"file\"; filename=\"a.wav\"", "RIFF"),
            part("name=\"temperature\"", "0.5"),
            part("name=\"stream\"", "true"),
            part("name=\"prompt\"", "[1]"),
            part("name=\"kinds[]\"", "word"),
            part("name=\"kinds[]\"", "7"),
            "--x--\r\n".to_owned(),
        ];
        let (value, file) = parse(form.concat().into_bytes(), "x".to_owned()).await.unwrap();
        let kinds = json!(["word", 7]);
        assert_eq!(value, json!({ "temperature": 0.5, "stream": true, "prompt": "[1]", "kinds[]": kinds }));
        assert_eq!(file.as_deref(), Some(&b"RIFF"[..]));
        let cut = form.concat().as_bytes()[..60].to_vec();
        assert!(parse(cut, "x".to_owned()).await.is_err());
    }
}
