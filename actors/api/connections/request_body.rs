//! The body of a request, which its connection gets back when the handler drops it.
//!
//! A connection cannot serve another request while a body waits on it. A refusal that does not read the body would therefore
//! end the connection, which clients take for a fault. So the rest of a small body is read before the response is sent,
//! and the client of a large one is told that the connection ends.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::timeout;

/// Most bytes of a body that are read without a use for them.
const MOST_BYTES: u64 = 256 << 10;

/// How long to wait for these bytes.
const MOST_TIME: Duration = Duration::from_secs(2);

/// A body whose rest is handed to its [`Rest`] when it is dropped.
pub(super) struct LentBody {
    /// `None` only while it is dropped.
    body: Option<Incoming>,
    rest: Rest,
}

/// What a handler has not read of a body.
#[derive(Clone, Default)]
pub(super) struct Rest(Arc<Mutex<Option<Incoming>>>);

impl Rest {
    /// Lends a body to a handler.
    pub fn lend(&self, body: Incoming) -> LentBody {
        LentBody { body: Some(body), rest: self.clone() }
    }

    /// Reads the rest, or marks the response as the last one of its connection.
    pub async fn settle<B>(self, response: &mut Response<B>) {
        let rest = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(rest) = rest else { return };
        let ends = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
        if !ends && !timeout(MOST_TIME, is_read(rest)).await.unwrap_or(false) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Whether the rest of a body is small and was read.
async fn is_read(mut body: Incoming) -> bool {
    let mut bytes = 0;
    while bytes + body.size_hint().lower() <= MOST_BYTES {
        match body.frame().await {
            Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            Some(Err(_)) => return false,
            None => return true,
        }
    }
    false
}

impl Drop for LentBody {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }
}

impl HttpBody for LentBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
