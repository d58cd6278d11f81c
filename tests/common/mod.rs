//! A server with a simulated model, and the calls that tests make to it.
#![allow(dead_code, clippy::unwrap_used)]

pub mod listening;
pub mod openai;
pub mod vectors;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use cuelight::api::{ServerOptions, router};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{SimulatedModel, tokenizer};
use cuelight_engine::format::chat_template::ChatTemplate;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// Name of the simulated model. It contains a `/`, like names on the hub.
pub const MODEL: &str = "test/simulated";

/// Renders a conversation as `user:hi\nassistant:`.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

/// A model that generates words of lower-case letters.
pub fn model() -> SimulatedModel {
    let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
    SimulatedModel { chat_template: Some(Arc::new(template)), ..SimulatedModel::new(tokenizer()) }
}

/// A running server, called in-process.
pub struct Server {
    pub runtime: Runtime,
    pub router: Router,
}

/// A response.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The `data:` lines of a stream, without the final `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let text = self.text();
        let mut data: Vec<&str> = text.split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Server {
    pub async fn start(model: SimulatedModel) -> Self {
        Self::start_with(model, RuntimeOptions::default(), ServerOptions::new(MODEL)).await
    }

    pub async fn start_with(model: SimulatedModel, runtime: RuntimeOptions, options: ServerOptions) -> Self {
        let runtime = Runtime::start(model, runtime).await.unwrap();
        assert!(runtime.wait_ready().await.is_ok());
        let router = router(runtime.clone(), options).unwrap();
        Server { runtime, router }
    }

    /// Returns the response as soon as it starts.
    pub async fn begin(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn call(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.begin(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(post(path, body)).await
    }

    /// Posts a request that must succeed.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        answer.json()
    }

    /// Posts a request that must be refused. Returns the message of the error, which must have OpenAI's form, and the field that it
    /// names.
    pub async fn refused(&self, path: &str, body: &Value) -> (String, Value) {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {}", answer.text());
        let error = answer.json()["error"].clone();
        (error["message"].as_str().unwrap().to_owned(), error["param"].clone())
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    /// Waits until no request runs or waits.
    pub async fn settle(&self) {
        loop {
            let counts = self.runtime.snapshot();
            if counts.running == 0 && counts.waiting == 0 && counts.blocks_used == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

pub fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}
