//! How the server delivers the chat page: routes, content types, headers, the `Accept` header, and the switch.
//! `chat_page.py` tests the page itself in a browser.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::Request;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;

use common::{Answer, MODEL, Server, model};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// A server with a key, which no request of this file sends.
async fn server(chat_page: bool) -> Server {
    let options = ServerOptions { api_keys: vec!["key".into()], chat_page, ..ServerOptions::new(MODEL) };
    Server::start_with(model(), RuntimeOptions::default(), options).await
}

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    server.call(request.body(Body::empty()).unwrap()).await
}

/// The paths that a text has between `before` and a quote.
fn named(text: &str, before: &str) -> Vec<String> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_browser_gets_the_page_and_other_clients_a_greeting() {
    let server = server(true).await;
    let page = get(&server, "/", &[("accept", BROWSER)]).await;
    assert_eq!(
        (page.status.as_u16(), &page.headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    assert!(page.text().starts_with("<!doctype html>"));
    for (accept, expected) in
        [("*/*", "Ollama is running"), ("application/json", "Cuelight "), ("text/plain, */*", "Cuelight ")]
    {
        let greeting = get(&server, "/", &[("accept", accept)]).await;
        assert!(greeting.text().starts_with(expected), "{accept}");
        assert_eq!(
            (&greeting.headers["content-type"], &greeting.headers["vary"]),
            (&"text/plain; charset=utf-8".parse().unwrap(), &"accept".parse().unwrap(),)
        );
    }
}

#[tokio::test]
async fn every_file_of_the_page_is_served_without_a_key_and_with_its_type() {
    let server = server(true).await;
    let page = get(&server, "/", &[("accept", BROWSER)]).await.text();
    let mut paths: Vec<String> = named(&page, "\"page/").into_iter().map(|name| format!("/page/{name}")).collect();
    assert!(paths.len() >= 2, "{paths:?}");
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        let file = get(&server, &path, &[]).await;
        assert_eq!(file.status, 200, "{path}");
        let kind = if path.ends_with(".css") { "text/css" } else { "text/javascript" };
        assert_eq!(file.headers["content-type"], format!("{kind}; charset=utf-8"), "{path}");
        let imported = named(&file.text(), "from \"./").into_iter().map(|name| format!("/page/{name}"));
        let new: Vec<String> = imported.filter(|path| !paths.contains(path)).collect();
        paths.extend(new);
    }
    assert!(paths.len() > 10, "{paths:?}");
}

#[tokio::test]
async fn the_page_may_load_its_own_files_only_and_may_not_be_framed() {
    let server = server(true).await;
    for path in ["/", "/page/app.js", "/page/style.css"] {
        let answer = get(&server, path, &[("accept", BROWSER)]).await;
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        let directives: Vec<&str> = policy.split("; ").collect();
        let expected = [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "media-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ];
        assert_eq!(directives, expected, "{path}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
    }
}

#[tokio::test]
async fn a_browser_that_has_a_file_gets_an_empty_304() {
    let server = server(true).await;
    for path in ["/", "/page/style.css"] {
        let first = get(&server, path, &[("accept", BROWSER)]).await;
        assert_eq!(first.headers["cache-control"], "no-cache");
        let etag = first.headers["etag"].to_str().unwrap();
        let again = get(&server, path, &[("accept", BROWSER), ("if-none-match", etag)]).await;
        assert_eq!((again.status.as_u16(), again.body.len()), (304, 0), "{path}");
        assert_eq!(again.headers["etag"], etag);
        let other = get(&server, path, &[("accept", BROWSER), ("if-none-match", "\"other\"")]).await;
        assert_eq!((other.status.as_u16(), other.body), (200, first.body), "{path}");
    }
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let server = server(true).await;
    for path in ["/page/mod.rs", "/page/..%2Fauth.rs", "/page/index.html", "/page/App.js"] {
        assert_eq!(get(&server, path, &[]).await.status, 404, "{path}");
    }
    let post = Request::post("/page/app.js").body(Body::empty()).unwrap();
    assert_eq!(server.call(post).await.status, 405);
    let foreign = [("accept", BROWSER), ("host", "127.0.0.1:8080"), ("origin", "https://evil.example")];
    assert_eq!(get(&server, "/page/app.js", &foreign).await.status, 403);
}

#[tokio::test]
async fn a_server_without_the_page_greets_browsers_in_plain_text() {
    let server = server(false).await;
    let greeting = get(&server, "/", &[("accept", BROWSER)]).await;
    assert_eq!(greeting.status, 200);
    assert!(greeting.text().starts_with("Cuelight "));
    assert_eq!(get(&server, "/page/app.js", &[]).await.status, 404);
}
