//! `POST /v1/files`: a form whose file goes to the disk as it arrives, and never as a whole into memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use futures_util::Stream;
use http_body_util::BodyExt;
use multer::{Constraints, Field, Multipart, SizeLimit};
use serde_json::Value;
use tokio::time::timeout;

use super::object;
use crate::api::caller::Caller;
use crate::api::extract::{check_encoding, text};
use crate::api::fields::missing;
use crate::api::server::SharedServer;
use crate::serving::batch::store::{BatchStore, Content, RETENTION, Upload};
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::{ApiError, clip};

/// Most bytes of a field that is not the file.
const MOST_FIELD_BYTES: u64 = 4 << 10;

/// Shortest time that a file is kept, in seconds.
const SHORTEST_LIFE: u64 = 3600;

/// `POST /v1/files`.
pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches()?;
    check_encoding(request.headers())?;
    let content_type = text(request.headers(), header::CONTENT_TYPE).unwrap_or_default().into_owned();
    let boundary = multer::parse_boundary(&content_type).map_err(|_| other_type(&content_type))?;
    let patience = server.options().body_timeout;
    let limits = SizeLimit::new().per_field(MOST_FIELD_BYTES).for_field("file", u64::MAX);
    let form = Multipart::with_constraints(
        timed(request.into_body(), patience),
        boundary,
        Constraints::new().size_limit(limits),
    );
    let Form { content, filename, lifetime } = Form::read(form, &store, patience).await?;
    on_blocking_thread(move || Ok(Json(object(&*store.add_file(&caller.owner(), content, filename, lifetime)?)))).await
}

fn other_type(content_type: &str) -> ApiError {
    let content_type = clip(content_type);
    let message = format!("the content type must be `multipart/form-data` with a boundary, not `{content_type}`");
    ApiError::UnsupportedMediaType(message)
}

/// The data of a body, which ends with an error when none arrives for too long.
fn timed(mut body: Body, patience: Duration) -> impl Stream<Item = io::Result<Bytes>> {
    async_stream::stream! {
        loop {
            let frame = match timeout(patience, body.frame()).await {
                Ok(Some(frame)) => frame.map_err(io::Error::other),
                Ok(None) => break,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            match frame.map(|frame| frame.into_data().ok()) {
                Ok(None) => {}
                Ok(Some(data)) => yield Ok(data),
                Err(error) => {
                    yield Err(error);
                    break;
                }
            }
        }
    }
}

/// What a form has.
struct Form {
    content: Content,
    filename: String,
    /// How long the file is kept, in seconds.
    lifetime: u64,
}

impl Form {
    async fn read(mut form: Multipart<'_>, store: &Arc<BatchStore>, patience: Duration) -> Result<Self, ApiError> {
        let (mut file, mut fields) = (None, FormFields::default());
        while let Some(field) = form.next_field().await.map_err(|error| unreadable(error, patience))? {
            if field.name() == Some("file") {
                // A purpose that is wrong is refused before the file, where it comes first.
                fields.check_known()?;
                let filename = field.file_name().filter(|name| !name.is_empty()).unwrap_or("file.jsonl").to_owned();
                file = Some((write(field, store, patience).await?, filename));
            } else {
                let name = field.name().unwrap_or_default().to_owned();
                fields.set(&name, field.text().await.map_err(|error| unreadable(error, patience))?);
            }
        }
        let lifetime = fields.lifetime()?;
        let (upload, filename) = file.ok_or_else(|| missing("file", "a file of requests, one JSON object per line"))?;
        let filename = filename.chars().take(256).collect();
        Ok(Form { content: upload.finish().await?, filename, lifetime })
    }
}

/// Writes a file to the disk.
async fn write(mut field: Field<'_>, store: &Arc<BatchStore>, patience: Duration) -> Result<Upload, ApiError> {
    let mut upload = Upload::begin(store).await?;
    while let Some(data) = field.chunk().await.map_err(|error| unreadable(error, patience))? {
        upload.write(&data).await?;
    }
    Ok(upload)
}

fn unreadable(error: multer::Error, patience: Duration) -> ApiError {
    match &error {
        multer::Error::StreamReadFailed(cause)
            if cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut) =>
        {
            ApiError::BodyTimeout(patience)
        }
        _ => ApiError::invalid_body(format!("the form cannot be read: {error}")),
    }
}

/// The fields besides the file.
#[derive(Debug, Default)]
struct FormFields {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

impl FormFields {
    /// Keeps a field. Unknown ones are ignored.
    fn set(&mut self, name: &str, value: String) {
        let place = match name {
            "purpose" => &mut self.purpose,
            "expires_after[anchor]" => &mut self.anchor,
            "expires_after[seconds]" => &mut self.seconds,
            _ => return,
        };
        *place = Some(value);
    }

    /// Checks the purpose, if it is known yet.
    fn check_known(&self) -> Result<(), ApiError> {
        match self.purpose.as_deref() {
            None | Some("batch") => Ok(()),
            Some(other) => {
                let message =
                    format!("`purpose` must be \"batch\", not {:?}: files are the requests of batches", clip(other));
                Err(ApiError::invalid("purpose", message))
            }
        }
    }

    /// Checks all fields, and reads how long the file is kept.
    fn lifetime(&self) -> Result<u64, ApiError> {
        const ANCHOR: &str = "expires_after[anchor]";
        const SECONDS: &str = "expires_after[seconds]";
        self.check_known()?;
        if self.purpose.is_none() {
            return Err(missing("purpose", "\"batch\""));
        }
        if let Some(other) = self.anchor.as_deref().filter(|anchor| *anchor != "created_at") {
            let message = format!("`{ANCHOR}` must be \"created_at\", not {:?}", clip(other));
            return Err(ApiError::invalid(ANCHOR, message));
        }
        let Some(seconds) = &self.seconds else { return Ok(RETENTION) };
        let valid = seconds.parse().ok().filter(|seconds| (SHORTEST_LIFE..=RETENTION).contains(seconds));
        let message =
            || format!("`{SECONDS}` must be an integer from {SHORTEST_LIFE} to {RETENTION}, not {}", clip(seconds));
        valid.ok_or_else(|| ApiError::invalid(SECONDS, message()))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn fields(purpose: Option<&str>, anchor: Option<&str>, seconds: Option<&str>) -> FormFields {
        let [purpose, anchor, seconds] = [purpose, anchor, seconds].map(|text| text.map(str::to_owned));
        FormFields { purpose, anchor, seconds }
    }

    #[test]
    fn a_file_is_kept_for_thirty_days_or_as_the_client_wants() {
        assert_eq!(fields(Some("batch"), None, None).lifetime(), Ok(RETENTION));
        assert_eq!(fields(Some("batch"), Some("created_at"), Some("3600")).lifetime(), Ok(3600));
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (fields, expected) in [
            (fields(None, None, None), "`purpose` is required"),
            (fields(Some("vision"), None, None), "`purpose` must be \"batch\", not \"vision\""),
            (fields(Some("batch"), Some("last_used"), None), "`expires_after[anchor]` must be"),
            (fields(Some("batch"), None, Some("10")), "`expires_after[seconds]` must be an integer from 3600"),
            (fields(Some("batch"), None, Some("soon")), "`expires_after[seconds]` must be an integer"),
        ] {
            let error = fields.lifetime().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
