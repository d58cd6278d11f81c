//! One server: finds its model, calibrates its token counts, and measures requests from sending to the last byte.

use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response, Url};
use serde::Deserialize;
use serde_json::json;

use super::chunks::{Chunk, EventBuffer, Usage, refusal};
use super::record::{Failure, Record};
use super::workload::{PlannedRequest, Scale, words};

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The API that requests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Endpoint {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
}

impl Endpoint {
    fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "v1/chat/completions",
            Endpoint::Completions => "v1/completions",
        }
    }
}

/// The options of all requests to a server.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// The API.
    pub endpoint: Endpoint,
    /// The model's name; `None`: the first one that the server lists.
    pub model: Option<String>,
    /// Sent as `Authorization: Bearer …`.
    pub api_key: Option<String>,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Whether answers must have exactly the requested length.
    pub ignore_eos: bool,
    /// Sampling temperature; 0 always takes the most likely token.
    pub temperature: f64,
    /// Time limit of a request.
    pub timeout: Duration,
}

/// Why a server cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No server listens there.
    #[error("no server answers at {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The server needs an API key, or another one.
    #[error("{url} needs {}: {message}", if *.given { "another --api-key" } else { "an --api-key" })]
    Unauthorized {
        /// The address.
        url: String,
        /// Whether a key was sent.
        given: bool,
        /// The server's message.
        message: String,
    },
    /// A request failed: the server lacks the API or the model.
    #[error("{url} failed: {failure}")]
    Request {
        /// The address.
        url: String,
        /// Why it failed.
        failure: Failure,
    },
    /// The server has no model.
    #[error("{url} lists no model; name one with --model")]
    NoModel {
        /// The address.
        url: String,
    },
}

/// A server with the options of requests to it.
#[derive(Debug)]
pub struct Server {
    http: reqwest::Client,
    base: Url,
    options: CallOptions,
    /// The model that requests name.
    pub model: String,
    /// How the server counts tokens.
    pub scale: Scale,
    /// Whether the server reports token counts.
    pub counts_tokens: bool,
}

impl Server {
    /// A server without calibration: the model is that of the options, and each word counts as one token.
    ///
    /// # Errors
    /// [`ServerError`] when the HTTP client cannot be built.
    pub fn uncalibrated(base: Url, options: CallOptions) -> Result<Self, ServerError> {
        // A proxy would add its own latency.
        let client = reqwest::Client::builder().no_proxy().http1_only().connect_timeout(CONNECT_TIMEOUT);
        // Servers such as llama-server close a connection after a stream, which would break the next request on it. Without
        // encryption a new connection costs little.
        let kept = if base.scheme() == "http" { 0 } else { usize::MAX };
        let http =
            client.pool_max_idle_per_host(kept).build().map_err(|error| unreachable_server(base.as_str(), error))?;
        let model = options.model.clone().unwrap_or_default();
        Ok(Server { http, base, options, model, scale: Scale::GUESS, counts_tokens: false })
    }

    /// Finds the model, and calibrates the token counts with two short requests.
    ///
    /// # Errors
    /// [`ServerError`] when the server cannot be measured.
    pub async fn connect(base: Url, options: CallOptions) -> Result<Self, ServerError> {
        let mut server = Server::uncalibrated(base, options)?;
        server.model = match server.options.model.clone() {
            Some(model) => model,
            None => server.first_model().await?,
        };
        // Two lengths give the tokens per word and the tokens of the chat template.
        const SHORT: usize = 8;
        const LONG: usize = 72;
        let short = server.count(SHORT).await?;
        let long = server.count(LONG).await?;
        if let (Some(short), Some(long)) = (short, long)
            && let Some(scale) = Scale::through((SHORT, short), (LONG, long))
        {
            server.scale = scale;
            server.counts_tokens = true;
        }
        Ok(server)
    }

    /// The address without the path of the API.
    #[must_use]
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    async fn first_model(&self) -> Result<String, ServerError> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let url = self.at("v1/models");
        let get = self.authorized(self.http.get(&url)).timeout(self.options.timeout);
        let response = get.send().await.map_err(|error| unreachable_server(&url, error))?;
        let failed = |failure| self.failed(url.clone(), failure);
        if !response.status().is_success() {
            return Err(failed(refused(response).await));
        }
        let body = response.bytes().await.map_err(|error| failed(Failure::Disconnected(reason(error))))?;
        let models: Models =
            serde_json::from_slice(&body).map_err(|error| failed(Failure::Unreadable(error.to_string())))?;
        models.data.into_iter().next().map(|model| model.id).ok_or(ServerError::NoModel { url })
    }

    /// The server's token count for `count` words; `None` if it reports none.
    async fn count(&self, count: usize) -> Result<Option<usize>, ServerError> {
        let body = self.body(&words(count, 1), 1, false);
        let answer = self.send(body, false, &mut Reading::new(Instant::now())).await;
        let usage = answer.map_err(|failure| self.failed(self.endpoint(), failure))?;
        Ok(usage.map(|usage| usage.prompt_tokens))
    }

    /// Sends a request without recording it.
    ///
    /// # Errors
    /// [`ServerError`] when it fails.
    pub async fn warm_up(&self, request: &PlannedRequest) -> Result<(), ServerError> {
        let failure = self.measure(request, Instant::now()).await.failure;
        failure.map_or(Ok(()), |failure| Err(self.failed(self.endpoint(), failure)))
    }

    /// The error for a failed request that is not part of a round.
    fn failed(&self, url: String, failure: Failure) -> ServerError {
        match failure {
            Failure::Unreachable(reason) => ServerError::Unreachable { url, reason },
            Failure::Refused { status: 401 | 403, message, .. } => {
                ServerError::Unauthorized { url, given: self.options.api_key.is_some(), message }
            }
            failure => ServerError::Request { url, failure },
        }
    }

    /// Sends one request and reads the whole answer; times count from `start`.
    pub async fn measure(&self, request: &PlannedRequest, start: Instant) -> Record {
        let body = self.body(&request.prompt.text(self.scale), request.output_tokens, self.options.stream);
        let mut reading = Reading::new(start);
        let sent = start.elapsed();
        let answer = self.send(body, self.options.stream, &mut reading).await;
        let ended = start.elapsed();
        let (usage, failure) = match answer {
            Ok(usage) => (usage, None),
            Err(failure) => (None, Some(failure)),
        };
        Record { index: request.index, due: None, sent, ended, chunks: reading.chunks, usage, failure }
    }

    /// The address of the measured requests.
    fn endpoint(&self) -> String {
        self.at(self.options.endpoint.path())
    }

    async fn send(&self, body: Vec<u8>, stream: bool, reading: &mut Reading) -> Result<Option<Usage>, Failure> {
        let limit = self.options.timeout;
        let call = async {
            let post = self.authorized(self.http.post(self.endpoint())).header("content-type", "application/json");
            let response = post.body(body).send().await.map_err(not_sent)?;
            if !response.status().is_success() {
                return Err(refused(response).await);
            }
            if stream { reading.stream(response).await } else { whole(response).await }
        };
        tokio::time::timeout(limit, call).await.unwrap_or(Err(Failure::TimedOut(limit)))
    }

    fn body(&self, prompt: &str, output_tokens: usize, stream: bool) -> Vec<u8> {
        let options = &self.options;
        let mut body = json!({
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": options.temperature,
            "stream": stream,
        });
        match options.endpoint {
            Endpoint::Chat => body["messages"] = json!([{ "role": "user", "content": prompt }]),
            Endpoint::Completions => body["prompt"] = json!(prompt),
        }
        if options.ignore_eos {
            body["ignore_eos"] = json!(true);
            body["min_tokens"] = json!(output_tokens);
        }
        if stream {
            body["stream_options"] = json!({ "include_usage": true });
        }
        body.to_string().into_bytes()
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.options.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.url())
    }
}

/// The arrival times of a stream. They are kept when the request is cancelled at its time limit.
struct Reading {
    start: Instant,
    chunks: Vec<Duration>,
}

impl Reading {
    fn new(start: Instant) -> Self {
        Reading { start, chunks: Vec::new() }
    }

    async fn stream(&mut self, mut response: Response) -> Result<Option<Usage>, Failure> {
        let (mut buffer, mut usage, mut ended) = (EventBuffer::default(), None, false);
        while let Some(bytes) = response.chunk().await.map_err(disconnected)? {
            let now = self.start.elapsed();
            buffer.push(&bytes, |data| {
                if data == b"[DONE]" {
                    ended = true;
                    return Ok(());
                }
                let chunk = read(data)?;
                if chunk.has_text() {
                    self.chunks.push(now);
                }
                usage = chunk.usage.or(usage);
                ended |= chunk.is_finished();
                Ok(())
            })?;
        }
        match (ended, usage, self.chunks.is_empty()) {
            (false, ..) => Err(Failure::Disconnected("the stream ended before the answer".to_owned())),
            (true, None, true) => Err(Failure::Empty),
            (true, usage, _) => Ok(usage),
        }
    }
}

async fn whole(response: Response) -> Result<Option<Usage>, Failure> {
    let body = response.bytes().await.map_err(disconnected)?;
    let chunk = read(&body)?;
    if chunk.choices.is_empty() {
        return Err(Failure::Empty);
    }
    Ok(chunk.usage)
}

fn read(data: &[u8]) -> Result<Chunk, Failure> {
    let chunk: Chunk = serde_json::from_slice(data).map_err(|error| Failure::Unreadable(error.to_string()))?;
    match chunk.error {
        Some(error) => Err(Failure::ErrorEvent(error.0)),
        None => Ok(chunk),
    }
}

async fn refused(response: Response) -> Failure {
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let body = response.bytes().await.unwrap_or_default();
    let message = Some(refusal(&body)).filter(|message| !message.is_empty());
    let message = message.unwrap_or_else(|| status.canonical_reason().unwrap_or("no explanation").to_owned());
    Failure::Refused { status: status.as_u16(), retry_after, message }
}

/// `retry-after-ms`, which is more precise, or else `retry-after` in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn not_sent(error: reqwest::Error) -> Failure {
    if error.is_connect() { Failure::Unreachable(reason(error)) } else { disconnected(error) }
}

fn disconnected(error: reqwest::Error) -> Failure {
    Failure::Disconnected(reason(error))
}

fn unreachable_server(url: &str, error: reqwest::Error) -> ServerError {
    ServerError::Unreachable { url: url.to_owned(), reason: reason(error) }
}

/// The system's message: the last one in the chain of causes.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
