//! A server of tools over HTTP, as simple as the protocol allows.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};

#[derive(Default)]
struct Seen {
    methods: Vec<String>,
    headers: HeaderMap,
    has_changed: bool,
    has_announced: bool,
}

type Shared = Arc<Mutex<Seen>>;

/// A running server.
pub struct FakeServer {
    address: std::net::SocketAddr,
    seen: Shared,
    _runtime: tokio::runtime::Runtime,
}

impl FakeServer {
    /// Listens on a free port.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let seen = Shared::default();
        let closed = || async { StatusCode::UNAUTHORIZED };
        let moved = || async { (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "/mcp")]) };
        let router =
            Router::new().route("/mcp", any(handle)).route("/mcp/closed", any(closed)).route("/mcp/moved", any(moved));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.with_state(seen.clone());
        runtime.spawn(async move { axum::serve(listener, service).await });
        FakeServer { address, seen, _runtime: runtime }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// How many messages of a method it has got.
    pub fn received(&self, method: &str) -> usize {
        self.seen.lock().unwrap().methods.iter().filter(|seen| *seen == method).count()
    }

    /// A header of the last message.
    pub fn header(&self, name: &str) -> Option<String> {
        Some(self.seen.lock().unwrap().headers.get(name)?.to_str().unwrap().to_owned())
    }

    /// Whether it has told that its tools have changed.
    pub fn has_announced(&self) -> bool {
        self.seen.lock().unwrap().has_announced
    }
}

async fn handle(State(seen): State<Shared>, headers: HeaderMap, body: String) -> Response {
    let Ok(message) = serde_json::from_str::<Value>(&body) else {
        // Without a body, the client wants to hear of changes.
        return Sse::new(changes(seen)).into_response();
    };
    let method = message["method"].as_str().unwrap_or_default().to_owned();
    seen.lock().unwrap().headers = headers;
    seen.lock().unwrap().methods.push(method.clone());
    if message.get("id").is_none() {
        return StatusCode::ACCEPTED.into_response();
    }
    let result = match method.as_str() {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": { "tools": { "listChanged": true } },
            "serverInfo": { "name": "fake", "version": "1" },
        }),
        "tools/list" => page(message["params"]["cursor"].as_str(), seen.lock().unwrap().has_changed),
        "tools/call" => called(message["params"]["name"].as_str().unwrap_or_default(), &seen).await,
        _ => json!({}),
    };
    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::HeaderName::from_static("mcp-session-id"), "1")];
    (headers, answer.to_string()).into_response()
}

/// The tools on two pages.
fn page(cursor: Option<&str>, has_changed: bool) -> Value {
    let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
    match cursor {
        None => json!({ "tools": [tool("change")], "nextCursor": "2" }),
        Some(_) if has_changed => json!({ "tools": [tool("slow"), tool("added")] }),
        Some(_) => json!({ "tools": [tool("slow")] }),
    }
}

async fn called(tool: &str, seen: &Shared) -> Value {
    match tool {
        "slow" => tokio::time::sleep(Duration::from_secs(3600)).await,
        _ => seen.lock().unwrap().has_changed = true,
    }
    json!({ "content": [{ "type": "text", "text": "changed" }] })
}

/// Tells once that the tools have changed.
fn changes(seen: Shared) -> impl Stream<Item = Result<Event, std::convert::Infallible>> {
    stream::unfold(seen, |seen| async move {
        while !must_announce(&seen) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let event = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
        Some((Ok(Event::default().data(event.to_string())), seen))
    })
}

fn must_announce(seen: &Shared) -> bool {
    let mut seen = seen.lock().unwrap();
    let must = seen.has_changed && !seen.has_announced;
    seen.has_announced |= must;
    must
}
