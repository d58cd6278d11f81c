//! A response body that keeps its connection busy until it is sent or dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::activity::Serving;

/// The body of a response.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    _serving: Serving,
}

impl TrackedBody {
    pub fn new(body: Body, serving: Serving) -> Self {
        TrackedBody { body, _serving: serving }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
