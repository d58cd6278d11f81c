//! What `cuelight serve` prints once its models are ready: a line for each, and a request to try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cuelight_engine::embedding::Product;
use cuelight_engine::memory::format_bytes;
use serde_json::{Value, json};

use crate::config::{Config, LogFormat};
use crate::logging::{self, notice};
use crate::models::{Models, ModelsError};
use crate::pipeline::runtime::ServedModel;

/// Prints the line of a model, which ends with the address of the server.
pub(super) async fn print_model(models: &Models, id: &str, address: SocketAddr) -> Result<(), ModelsError> {
    // Another request may have unloaded it meanwhile.
    if let Some(model) = models.show(id).await?.model {
        let (limits, memory) = (&model.limits, format_bytes(model.memory.total_bytes()));
        // In a log of JSON, the event below says it.
        if !logging::is_json() {
            notice(&format!("ready: {id} ({}, {memory} planned) on http://{address}", limits.device));
        }
        let (context_tokens, kv_blocks) = (limits.context_tokens, limits.kv_blocks);
        tracing::info!(url = format!("http://{address}"), model = id, context_tokens, kv_blocks, "ready");
    }
    Ok(())
}

/// Prints how to try the first model, unless the log is for programs.
pub(super) async fn print_first_request(models: &Models, address: SocketAddr, config: &Config) {
    let list = models.list().await;
    let Some(first) = list.first().filter(|_| config.log_format == LogFormat::Text) else { return };
    let request = FirstRequest {
        address,
        model: (!first.named).then_some(&first.id),
        // A model of the directory is not loaded yet; most of them answer messages.
        use_of_model: first.model.as_ref().map_or(UseOfModel::Chat, |model| UseOfModel::of(model)),
        needs_key: !config.api_key.0.is_empty() || config.api_key_file.is_some(),
        has_page: !config.no_chat_page,
    };
    notice(&request.text());
}

/// What a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseOfModel {
    /// It answers messages.
    Chat,
    /// It continues a text.
    Text,
    /// It makes embeddings only.
    Embeddings,
    /// It orders documents.
    Reranking,
    /// It tells the classes of texts.
    Classification,
}

impl UseOfModel {
    fn of(model: &ServedModel) -> Self {
        match (model.card.embedding.product(), &model.chat_template) {
            (Product::Relevance, _) => UseOfModel::Reranking,
            (Product::Classes, _) => UseOfModel::Classification,
            (Product::Vectors, _) if model.card.embedding.is_only => UseOfModel::Embeddings,
            (Product::Vectors | Product::Alignment, Some(_)) => UseOfModel::Chat,
            (Product::Vectors | Product::Alignment, None) => UseOfModel::Text,
        }
    }
}

/// A first request to a server.
#[derive(Debug, Clone, Copy)]
struct FirstRequest<'a> {
    /// Where the server listens.
    address: SocketAddr,
    /// The model; `None` for the server's default.
    model: Option<&'a str>,
    /// What the model does.
    use_of_model: UseOfModel,
    /// Whether the server asks for a key.
    needs_key: bool,
    /// Whether the server has a page for browsers.
    has_page: bool,
}

impl FirstRequest<'_> {
    /// How to try the server. The second line is a command for a shell, complete but for a key.
    fn text(&self) -> String {
        let url = format!("http://{}", reachable(self.address));
        let page = if self.has_page { format!("open {url} in a browser, or ") } else { String::new() };
        let key = if self.needs_key { " with one of the API keys in KEY" } else { "" };
        format!("to try it, {page}run from another terminal{key}:\n  {}", self.command(&url))
    }

    fn command(&self, url: &str) -> String {
        let (route, mut body) = match self.use_of_model {
            UseOfModel::Chat => ("chat/completions", json!({ "messages": [{ "role": "user", "content": "Hello!" }] })),
            UseOfModel::Text => ("completions", json!({ "prompt": "Once upon a time", "max_tokens": 32 })),
            UseOfModel::Embeddings => ("embeddings", json!({ "input": ["Once upon a time"] })),
            UseOfModel::Reranking => {
                ("rerank", json!({ "query": "What is a fox?", "documents": ["An animal.", "A colour."] }))
            }
            UseOfModel::Classification => ("classify", json!({ "input": ["Once upon a time"] })),
        };
        if let Some(model) = self.model {
            body["model"] = Value::from(model);
        }
        let key = if self.needs_key { " -H \"Authorization: Bearer $KEY\"" } else { "" };
        let body = body.to_string().replace('\'', r"'\''");
        format!("curl {url}/v1/{route}{key} -d '{body}'")
    }
}

/// The address for a client on this machine: a server that listens on all interfaces is reached through the loopback one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: &str) -> FirstRequest<'static> {
        let address = address.parse().unwrap();
        FirstRequest { address, model: None, use_of_model: UseOfModel::Chat, needs_key: false, has_page: false }
    }

    #[test]
    fn a_chat_is_one_command() {
        let expected = "to try it, run from another terminal:\n  curl http://127.0.0.1:8080/v1/chat/completions \
                        -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'";
        assert_eq!(request("127.0.0.1:8080").text(), expected);
    }

    #[test]
    fn an_embedding_model_gets_a_text() {
        let request = FirstRequest { use_of_model: UseOfModel::Embeddings, ..request("127.0.0.1:8080") };
        assert!(request.text().contains("/v1/embeddings") && request.text().contains("\"input\""));
    }

    #[test]
    fn a_reranker_gets_a_query() {
        let request = FirstRequest { use_of_model: UseOfModel::Reranking, ..request("127.0.0.1:8080") };
        assert!(request.text().contains("/v1/rerank") && request.text().contains("\"query\""));
    }

    #[test]
    fn a_classifier_gets_a_text() {
        let request = FirstRequest { use_of_model: UseOfModel::Classification, ..request("127.0.0.1:8080") };
        assert!(request.text().contains("/v1/classify") && request.text().contains("\"input\""));
    }

    #[test]
    fn keys_names_and_plain_models_change_the_command() {
        let text = FirstRequest {
            model: Some("it's"),
            use_of_model: UseOfModel::Text,
            needs_key: true,
            has_page: true,
            ..request("127.0.0.1:8080")
        }
        .text();
        for part in
            ["open http://127.0.0.1:8080 in", "in KEY:", "/v1/completions", "Bearer $KEY\"", r#""model":"it'\''s""#]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn all_interfaces_are_reached_through_the_loopback_one() {
        assert!(request("0.0.0.0:80").text().contains("curl http://127.0.0.1:80/v1"));
        assert!(request("[::]:80").text().contains("curl http://[::1]:80/v1"));
    }
}
