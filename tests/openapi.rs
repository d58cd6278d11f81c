//! The document at `/openapi.json` describes the routes and fields that there are.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use common::{Server, model};

const DOCUMENT: &str = "/openapi.json";

async fn document(server: &Server) -> Value {
    server.get(DOCUMENT).await.json()
}

/// "POST /v1/responses/{id}/cancel" of every operation.
fn described(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, &Value)| {
        let methods = item.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase()));
        methods.collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

/// The routes that the sources add to the router, without those that only refuse, pages and tools of tests.
fn routed() -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("actors/api")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                routes.extend(routes_of(line));
            }
        }
    }
    routes
}

/// The routes of a line of source: one, or OpenAI's below each of their prefixes.
fn routes_of(line: &str) -> Vec<String> {
    let Some((_, call)) = line.split_once(".route(") else { return Vec::new() };
    let plain = call.strip_prefix('"').and_then(|rest| rest.split_once("\", ")).map(|route| (route, &[""][..]));
    let below = || call.strip_prefix("&at(\"")?.split_once("\"), ").map(|route| (route, &["", "/v1"][..]));
    let Some(((route, handlers), prefixes)) = plain.or_else(below) else { return Vec::new() };
    if ["refuse_", "page::", "debug::"].iter().any(|left_out| handlers.contains(left_out)) {
        return Vec::new();
    }
    let methods = ["get", "post", "delete"].into_iter().filter(|method| handlers.contains(&format!("{method}(")));
    let of_method = |method: &str| {
        let (method, route) = (method.to_uppercase(), route.replace("{*", "{"));
        prefixes.iter().map(move |prefix| format!("{method} {prefix}{route}")).collect::<Vec<_>>()
    };
    methods.flat_map(of_method).collect()
}

/// Whether a route without `/v1`, or with a final slash, is a second name of a described one.
fn is_alias(route: &str, described: &BTreeSet<String>) -> bool {
    let (method, path) = route.split_once(' ').unwrap();
    described.contains(&format!("{method} /v1{path}")) || described.contains(route.trim_end_matches('/'))
}

#[tokio::test]
async fn every_route_is_described_and_every_described_route_exists() {
    let described = described(&document(&Server::start(model()).await).await);
    let routed = routed();
    assert!(routed.len() > 30, "{routed:#?}");
    let missing: Vec<_> =
        routed.iter().filter(|route| !described.contains(*route) && !is_alias(route, &described)).collect();
    assert!(missing.is_empty(), "not described: {missing:#?}");
    let extra: Vec<_> = described.difference(&routed).collect();
    assert!(extra.is_empty(), "no such route: {extra:#?}");
}

#[tokio::test]
async fn required_fields_are_required() {
    let server = Server::start(model()).await;
    let document = document(&server).await;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(reference) = item["post"].pointer("/requestBody/content/application~1json/schema/$ref") else {
            continue;
        };
        let schema = document.pointer(reference.as_str().unwrap().trim_start_matches('#')).unwrap();
        for name in schema["required"].as_array().into_iter().flatten() {
            let answer = server.post(path, &json!({})).await;
            assert!(
                (400..404).contains(&answer.status.as_u16()),
                "{path} without {name}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
}

#[tokio::test]
async fn described_fields_are_in_the_documentation() {
    let document = document(&Server::start(model()).await).await;
    let pages = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/api.md")).unwrap();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for field in schema["properties"].as_object().unwrap().keys() {
            let is_named = ["`", ".", ":", "\"", ": "].iter().any(|end| pages.contains(&format!("`{field}{end}")));
            assert!(is_named, "docs/api.md does not have `{field}` of {name}");
        }
    }
}
