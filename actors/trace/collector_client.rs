//! The HTTP client of the span exporter.
//!
//! It is the client that also downloads models, so that the program contains one HTTP client and not two.

use std::future::{Future, ready};
use std::io::Read;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseBodyTooLarge};

/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// Sends spans to a collector.
#[derive(Debug)]
pub(super) struct CollectorClient(reqwest::blocking::Client);

impl CollectorClient {
    /// A client without connections.
    pub(super) fn new() -> Result<Self, HttpError> {
        // A blocking client cannot be made on a tokio worker.
        let make = || reqwest::blocking::Client::builder().timeout(TIMEOUT).build();
        let made = std::thread::Builder::new().name("collector-client".to_owned()).spawn(make)?.join();
        Ok(CollectorClient(made.map_err(|_| "the thread that makes it panicked")??))
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.0.execute(request.try_into()?)?;
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            headers.clone_from(answer.headers());
        }
        let mut body = Vec::new();
        answer.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut body)?;
        if body.len() as u64 > MAX_ANSWER_BYTES {
            return Err(ResponseBodyTooLarge::new().into());
        }
        Ok(response.body(body.into())?)
    }
}

impl HttpClient for CollectorClient {
    /// Blocks: the exporter has a thread of its own.
    fn send_bytes<'client, 'future>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'client: 'future,
        Self: 'future,
    {
        Box::pin(ready(self.send(request)))
    }
}
