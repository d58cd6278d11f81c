//! The requests to a server that speaks HTTP, over the HTTP client that also downloads models.
//!
//! Redirects are not followed: the headers of the user's file, which often hold a token, are for the address next to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::event_limit::{MAX_BYTES, limited};
use crate::core::error_chain::error_chain;

const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Characters of a refusal that are shown.
const SHOWN_CHARACTERS: usize = 200;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpFailure {
    /// The server wants to know who asks.
    #[error("the server asks for authorization (HTTP status 401); put a token into `headers` of its entry in the file")]
    Unauthorized,
    /// It is somewhere else.
    #[error("the server redirects to {0}; write that address into `url` of its entry in the file")]
    Redirected(String),
    /// Another status.
    #[error("the server answered with HTTP status {0}{1}")]
    Status(u16, String),
    /// Its answer is too long.
    #[error("the server's answer has more than {MAX_BYTES} bytes")]
    TooLong,
    /// It cannot be reached.
    #[error("{0}")]
    Request(String),
}

impl From<reqwest::Error> for HttpFailure {
    fn from(error: reqwest::Error) -> Self {
        HttpFailure::Request(error_chain(&error))
    }
}

type Failure = StreamableHttpError<HttpFailure>;

fn failed(error: impl Into<HttpFailure>) -> Failure {
    StreamableHttpError::Client(error.into())
}

/// Sends messages to a server.
#[derive(Debug, Clone)]
pub struct McpHttpClient(reqwest::Client);

impl McpHttpClient {
    /// A client without connections.
    ///
    /// # Errors
    /// [`HttpFailure::Request`] when TLS cannot be set up.
    pub fn new() -> Result<Self, HttpFailure> {
        let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
        let client = client.redirect(reqwest::redirect::Policy::none());
        Ok(McpHttpClient(client.user_agent(concat!("cuelight/", env!("CARGO_PKG_VERSION"))).build()?))
    }

    fn request(
        &self,
        method: Method,
        url: &str,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<RequestBuilder, Failure> {
        let mut all: HeaderMap = headers.into_iter().collect();
        // The headers of the protocol replace those of the file.
        all.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(session) = session {
            let value = HeaderValue::from_str(session);
            let value = value.map_err(|_| StreamableHttpError::UnexpectedServerResponse("a wrong session".into()))?;
            all.insert(HeaderName::from_static(SESSION), value);
        }
        Ok(self.0.request(method, url).headers(all))
    }
}

/// The response, if its status means success or is of the protocol.
fn checked(response: Response) -> Result<Response, Failure> {
    match response.status() {
        StatusCode::UNAUTHORIZED => Err(failed(HttpFailure::Unauthorized)),
        status if status.is_redirection() => {
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("another address");
            Err(failed(HttpFailure::Redirected(to.to_owned())))
        }
        _ => Ok(response),
    }
}

fn is_of_type(response: &Response, expected: &str) -> bool {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(expected)
}

/// A body that is no stream.
async fn whole(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_BYTES {
            return Err(failed(HttpFailure::TooLong));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The failure that a status and the body with it stand for. An error of the protocol is an answer.
async fn refused(status: StatusCode, response: Response) -> Result<StreamableHttpPostResponse, Failure> {
    let body = whole(response).await?;
    if let Ok(message @ ServerJsonRpcMessage::Error(_)) = serde_json::from_slice(&body) {
        return Ok(StreamableHttpPostResponse::Json(message, None));
    }
    let shown: String = String::from_utf8_lossy(&body).trim().chars().take(SHOWN_CHARACTERS).collect();
    let shown = if shown.is_empty() { shown } else { format!(": {shown}") };
    Err(failed(HttpFailure::Status(status.as_u16(), shown)))
}

fn events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    SseStream::from_bytes_stream(Box::pin(limited(response))).boxed()
}

impl StreamableHttpClient for McpHttpClient {
    type Error = HttpFailure;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(&message)?;
        let request = self.request(Method::POST, &uri, session_id.as_deref(), custom_headers)?;
        let response = checked(request.header(CONTENT_TYPE, JSON).body(body).send().await.map_err(failed)?)?;
        let awaits_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if session_id.is_some() => return Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => return refused(status, response).await,
            _ if !awaits_answer => return Ok(StreamableHttpPostResponse::Accepted),
            _ => {}
        }
        let session = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        if is_of_type(&response, EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        if !is_of_type(&response, JSON) {
            return Err(wrong_type(&response));
        }
        Ok(StreamableHttpPostResponse::Json(serde_json::from_slice(&whole(response).await?)?, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, &uri, Some(&session_id), custom_headers)?;
        match request.send().await.map_err(failed)?.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportDeleteSession),
            _ => Ok(()),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let mut request = self.request(Method::GET, &uri, session_id.as_deref(), custom_headers)?;
        if let Some(id) = last_event_id {
            request = request.header(LAST_EVENT, id);
        }
        let response = checked(request.send().await.map_err(failed)?)?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(failed(HttpFailure::Status(status.as_u16(), String::new()))),
            _ if !is_of_type(&response, EVENTS) => Err(wrong_type(&response)),
            _ => Ok(events(response)),
        }
    }
}

fn wrong_type(response: &Response) -> Failure {
    let value =
        response.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    StreamableHttpError::UnexpectedContentType(value)
}
