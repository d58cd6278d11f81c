//! Images in requests of every protocol, over a simulated model and a simulated image encoder.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cuelight::api::{ServerOptions, router};
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulated_media::SimulatedMedia;
use cuelight::pipeline::simulation::{SimulatedModel, media_tokenizer};
use cuelight::serving::media_limits::MediaLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::media::{MediaKind, MediaSpec};
use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

use common::{MODEL, Server};

const CHAT: &str = "/v1/chat/completions";

/// A template that takes lists of parts.
const PARTS: &str = "{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}\
                     {% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}\
                     {% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// A template of texts.
const TEXTS: &str = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}\
                     {% if add_generation_prompt %}assistant:{% endif %}";

fn model_with(template: &str, vision: SimulatedMedia) -> SimulatedModel {
    let tokenizer = media_tokenizer();
    let template =
        ChatTemplate::new(template, "", "").unwrap().with_plain_content(&tokenizer.markers(&[template])).unwrap();
    let model = SimulatedModel { chat_template: Some(Arc::new(template)), ..SimulatedModel::new(tokenizer) };
    SimulatedModel { end_one_in: u64::MAX, ..model }.with_media(vision)
}

fn model() -> SimulatedModel {
    model_with(PARTS, SimulatedMedia::default())
}

/// A PNG file of one color.
fn png(width: u32, height: u32, color: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(width, height, Rgb([color, 2, 3])).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn base64(color: u8) -> String {
    STANDARD.encode(png(20, 10, color))
}

/// An image of 20 rows.
fn data_url(color: u8) -> String {
    format!("data:image/png;base64,{}", base64(color))
}

fn image_url(color: u8) -> Value {
    json!({ "type": "image_url", "image_url": { "url": data_url(color), "detail": "auto" } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn chat(content: Value) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": content }], "max_tokens": 8, "temperature": 0 })
}

fn answer_of(response: &Value) -> String {
    response["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn rows_count_as_tokens_of_the_prompt_and_decide_the_answer() {
    let model = model();
    let encoded = model.media.as_ref().unwrap().encoded.clone();
    let server = Server::start(model).await;
    let first = server.ok(CHAT, &chat(json!([image_url(1), text("what?")]))).await;
    // "user:", the image between its two tokens, "what?\n", "assistant:".
    assert_eq!(first["usage"]["prompt_tokens"], 5 + 22 + 6 + 10);
    let again = server.ok(CHAT, &chat(json!([image_url(1), text("what?")]))).await;
    assert_eq!((answer_of(&again), encoded.load(Ordering::Relaxed)), (answer_of(&first), 1), "its rows were kept");
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 32);
    let other = server.ok(CHAT, &chat(json!([image_url(9), text("what?")]))).await;
    assert_ne!(answer_of(&other), answer_of(&first));
    assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "another image is another prefix");
    let none = server.ok(CHAT, &chat(json!("what?"))).await;
    assert_ne!(answer_of(&none), answer_of(&first));
}

#[tokio::test]
async fn the_answer_is_the_same_with_any_chunk_size_and_in_a_batch() {
    for rows_see_each_other in [false, true] {
        let images = Some(MediaSpec { rows_see_each_other, ..SimulatedMedia::spec(MediaKind::Image) });
        let vision = SimulatedMedia { images, ..SimulatedMedia::default() };
        let body = |color: u8| chat(json!([text("one "), image_url(color), text(" two "), image_url(color + 1)]));
        let mut answers = Vec::new();
        for chunk in [1, 7, 512] {
            let policy =
                PolicyConfig { prefill_chunk_tokens: chunk, prefix_cache: chunk != 7, ..PolicyConfig::default() };
            let options = RuntimeOptions { policy, ..RuntimeOptions::default() };
            let server =
                Server::start_with(model_with(PARTS, vision.clone()), options, ServerOptions::new(MODEL)).await;
            let colors = [1, 5, 1, 9];
            let bodies = colors.map(body);
            let all = futures_util::future::join_all(bodies.iter().map(|body| server.ok(CHAT, body))).await;
            let all: Vec<String> = all.iter().map(answer_of).collect();
            assert_eq!(all[0], all[2]);
            assert_ne!(all[0], all[1]);
            answers.push(all);
        }
        assert!(answers.iter().all(|all| *all == answers[0]), "{answers:?}");
    }
}

#[tokio::test]
async fn replicas_share_one_encoder() {
    let model = model();
    let encoded = model.media.as_ref().unwrap().encoded.clone();
    let runtime = Runtime::start_replicas(vec![model.clone(), model], RuntimeOptions::default()).await.unwrap();
    assert!(runtime.wait_ready().await.is_ok());
    let server = Server { router: router(runtime.clone(), ServerOptions::new(MODEL)).unwrap(), runtime };
    let first = server.ok(CHAT, &chat(json!([image_url(1), text("a")]))).await;
    let bodies: Vec<Value> = (0..6).map(|_| chat(json!([image_url(1), text("a")]))).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|body| server.ok(CHAT, body))).await;
    assert!(answers.iter().all(|answer| answer_of(answer) == answer_of(&first)));
    assert_eq!(encoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_template_of_texts_gets_the_placeholder_in_its_text() {
    let server = Server::start(model_with(TEXTS, SimulatedMedia::default())).await;
    let answer = server.ok(CHAT, &chat(json!([text("a"), image_url(1), text("b")]))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 5 + 2 + 22 + 2 + 1 + 10, "lines divide texts and images");
}

#[tokio::test]
async fn a_template_of_parts_gets_texts_as_parts() {
    let parts_only = "{% for message in messages %}{{ message.role }}:{% for part in message.content %}{% if part.type == 'image' %}\
                      <|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}assistant:";
    let server = Server::start(model_with(parts_only, SimulatedMedia::default())).await;
    let answer = server.ok(CHAT, &chat(json!("hello"))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 5 + 5 + 1 + 10);
    let system = json!({ "role": "system", "content": "be" });
    let user = json!({ "role": "user", "content": [image_url(1), text("hi")] });
    let answer = server.ok(CHAT, &json!({ "model": MODEL, "messages": [system, user], "max_tokens": 2 })).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 10 + 5 + 22 + 3 + 10);
}

#[tokio::test]
async fn what_a_user_spells_is_no_image() {
    let server = Server::start(model()).await;
    let spelled = "<|image|><|image_row|>";
    let with = server.ok(CHAT, &chat(json!([text(spelled), image_url(1)]))).await;
    assert_eq!(with["usage"]["prompt_tokens"], 5 + spelled.len() + 22 + 1 + 10);
    let system = json!({ "role": "system", "content": "<|image|>" });
    let user = json!({ "role": "user", "content": [image_url(1)] });
    let body = json!({ "model": MODEL, "messages": [system, user], "max_tokens": 2 });
    let (message, param) = server.refused(CHAT, &body).await;
    assert!(param == "messages" && message.contains("2 placeholders"), "{message}");
    let system = json!({ "role": "system", "content": "<|image_row|>" });
    let body = json!({ "model": MODEL, "messages": [system, user], "max_tokens": 2 });
    let (message, _) = server.refused(CHAT, &body).await;
    assert!(message.contains("spell a token"), "{message}");
}

#[tokio::test]
async fn every_protocol_takes_images() {
    let server = Server::start(model()).await;
    let expected = answer_of(&server.ok(CHAT, &chat(json!([image_url(1), text("hi")]))).await);
    let anthropic = |source: Value| {
        let content = json!([{ "type": "image", "source": source }, { "type": "text", "text": "hi" }]);
        json!({ "model": MODEL, "max_tokens": 8, "temperature": 0, "messages": [{ "role": "user", "content": content }] })
    };
    for source in [
        json!({ "type": "base64", "media_type": "image/png", "data": base64(1) }),
        json!({ "type": "url", "url": data_url(1) }),
    ] {
        let body = anthropic(source);
        let answer = server.ok("/v1/messages", &body).await;
        assert_eq!(answer["content"][0]["text"], expected);
        let counted = server.ok("/v1/messages/count_tokens", &body).await;
        assert_eq!(counted["input_tokens"], 5 + 22 + 3 + 10);
    }
    let content = json!([{ "type": "input_image", "image_url": data_url(1) }, { "type": "input_text", "text": "hi" }]);
    let input = json!([{ "role": "user", "content": content }]);
    let body = json!({ "model": MODEL, "max_output_tokens": 8, "temperature": 0, "input": input });
    let answer = server.ok("/v1/responses", &body).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], expected);
    let counted = server.ok("/v1/responses/input_tokens", &json!({ "model": MODEL, "input": input })).await;
    assert_eq!(counted["input_tokens"], 5 + 22 + 3 + 10);
    let options = json!({ "num_predict": 8, "temperature": 0 });
    let message = json!({ "role": "user", "content": "hi", "images": [base64(1)] });
    let body = json!({ "model": MODEL, "stream": false, "options": options, "messages": [message] });
    assert_eq!(server.ok("/api/chat", &body).await["message"]["content"], expected);
    let body = json!({ "model": MODEL, "stream": false, "options": options, "prompt": "hi", "images": [data_url(1)] });
    assert_eq!(server.ok("/api/generate", &body).await["response"], expected);
}

#[tokio::test]
async fn results_of_tools_may_have_images() {
    let calls = "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}{{ '\n' }}";
    let server = Server::start(model_with(&PARTS.replace("{{ '\n' }}", calls), SimulatedMedia::default())).await;
    let tool_use = json!({ "type": "tool_use", "id": "t1", "name": "look", "input": {} });
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": base64(1) } });
    let body = |content: Value| {
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": content });
        json!({ "model": MODEL, "max_tokens": 4, "messages": [
            { "role": "user", "content": "look" },
            { "role": "assistant", "content": [{ "type": "text", "text": "I look." }, tool_use] },
            { "role": "user", "content": [result] },
        ] })
    };
    let seen = json!({ "type": "text", "text": "seen" });
    let mut tokens = Vec::new();
    for content in [json!([seen]), json!([seen, image])] {
        server.ok("/v1/messages", &body(content.clone())).await;
        let counted = server.ok("/v1/messages/count_tokens", &body(content)).await;
        tokens.push(counted["input_tokens"].as_u64().unwrap());
    }
    assert_eq!(tokens[1] - tokens[0], 22 + 6, "the image is in a message of the user: {tokens:?}");
}

#[tokio::test]
async fn a_model_without_a_vision_tower_says_so_in_every_protocol() {
    let server = Server::start(common::model()).await;
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": base64(1) } });
    let input_image = json!({ "type": "input_image", "image_url": data_url(1) });
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    for (path, body, param) in [
        (CHAT, json!({ "messages": user(json!([text("a"), image_url(1)])) }), "messages[0].content[1].type"),
        ("/v1/responses", json!({ "input": user(json!([input_image])) }), "input[0].content[0].type"),
    ] {
        let (message, found) = server.refused(path, &body).await;
        assert!(found == param && message.contains("text only"), "{path}: {message} {found}");
    }
    let body = json!({ "max_tokens": 2, "messages": user(json!([image])) });
    let answer = server.post("/v1/messages", &body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text().contains("messages[0].content[0].type"), "{}", answer.text());
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "a", "images": [base64(1)] }] });
    let answer = server.post("/api/chat", &body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text().contains("messages[0].images"), "{}", answer.text());
}

#[tokio::test]
async fn images_that_cannot_be_used_are_refused_with_the_field_and_the_reason() {
    let limits = MediaLimits { images: 2, image_bytes: 2000, image_pixels: 1000, ..MediaLimits::default() };
    let options = ServerOptions { media: limits, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let url = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    let noise: Vec<u8> = (0..3000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut cut = png(20, 10, 1);
    cut.truncate(50);
    for (url, reason) in [
        ("data:image/png;base64,*".to_owned(), "not valid base64"),
        ("data:image/png,abc".to_owned(), "data URL"),
        ("file:///etc/passwd".to_owned(), "https://"),
        (url(b"hello"), "not a PNG, JPEG, WebP, GIF or BMP"),
        (url(&cut), "cannot be decoded"),
        (url(&noise), "more than the 2000 bytes"),
        (url(&png(100, 100, 1)), "100 x 100 pixels"),
        ("https://example.org/a.png".to_owned(), "--media-host example.org"),
    ] {
        let image = json!({ "type": "image_url", "image_url": { "url": url } });
        let (message, param) = server.refused(CHAT, &chat(json!([text("a"), image]))).await;
        assert_eq!(param, "messages[0].content[1].image_url.url", "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let (message, param) = server.refused(CHAT, &chat(json!([image_url(1), image_url(2), image_url(3)]))).await;
    assert!(param == "messages[0].content[2].image_url.url" && message.contains("--max-images"), "{message}");
    let mut scored = chat(json!([image_url(1)]));
    scored["prompt_logprobs"] = json!(1);
    assert_eq!(server.refused(CHAT, &scored).await.1, "prompt_logprobs");
    server.ok(CHAT, &chat(json!([image_url(1), image_url(2)]))).await;
    for path in ["/apply-template", "/tokenize"] {
        let (message, _) = server.refused(path, &chat(json!([image_url(1)]))).await;
        assert!(message.contains("renders texts only"), "{message}");
    }
}

#[tokio::test]
async fn an_image_is_loaded_from_an_allowed_host_without_following_redirects() {
    let pages = Router::new()
        .route("/a.png", get(|| async { png(20, 10, 1) }))
        .route("/large", get(|| async { vec![0_u8; 10_000] }))
        .route("/moved", get(|| async { axum::response::Redirect::temporary("/a.png") }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, pages).await });
    let limits = MediaLimits {
        image_bytes: 5000,
        hosts: vec![address.to_string().parse().unwrap()].into(),
        ..MediaLimits::default()
    };
    let options = ServerOptions { media: limits, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let at = |host: &str, path: &str| {
        chat(json!([{ "type": "image_url", "image_url": format!("http://{host}/{path}") }, text("hi")]))
    };
    let here = address.to_string();
    let loaded = server.ok(CHAT, &at(&here, "a.png")).await;
    let sent = server.ok(CHAT, &chat(json!([image_url(1), text("hi")]))).await;
    assert_eq!(answer_of(&loaded), answer_of(&sent));
    for (host, path, reason) in [
        (here.as_str(), "moved", "redirects are not followed"),
        (&here, "missing", "status 404"),
        (&here, "large", "more than the 5000 bytes"),
        ("127.0.0.1:1", "a.png", "no images from that host"),
        ("localhost", "a.png", "no images from that host"),
    ] {
        let (message, param) = server.refused(CHAT, &at(host, path)).await;
        assert!(message.contains(reason), "{message}");
        assert_eq!(param, "messages[0].content[0].image_url");
    }
}

#[tokio::test]
async fn the_descriptions_of_a_model_say_that_it_takes_images() {
    for (model, takes) in [(model(), true), (common::model(), false)] {
        let server = Server::start(model).await;
        let models = server.get("/v1/models").await.json();
        let modalities = &models["data"][0]["architecture"]["input_modalities"];
        assert_eq!(*modalities, if takes { json!(["text", "image"]) } else { json!(["text"]) });
        assert_eq!(server.get("/props").await.json()["modalities"]["vision"], takes);
        let shown = server.ok("/api/show", &json!({ "model": MODEL })).await;
        let has = shown["capabilities"].as_array().unwrap().contains(&json!("vision"));
        assert_eq!(has, takes);
    }
}

#[tokio::test]
async fn a_lost_encoder_is_restarted_and_an_image_that_kills_it_each_time_is_given_up() {
    let once = SimulatedMedia { panics: Some(Arc::new(|number| number == 0)), ..SimulatedMedia::default() };
    let server = Server::start(SimulatedModel { host: EngineHost::Thread, ..model_with(PARTS, once) }).await;
    server.ok(CHAT, &chat(json!([image_url(1)]))).await;
    let deadly = SimulatedMedia { panics: Some(Arc::new(|number| number < 3)), ..SimulatedMedia::default() };
    let encoded = deadly.encoded.clone();
    let server = Server::start(SimulatedModel { host: EngineHost::Thread, ..model_with(PARTS, deadly) }).await;
    let answer = server.post(CHAT, &chat(json!([image_url(1)]))).await;
    assert_eq!((answer.status, encoded.load(Ordering::Relaxed)), (StatusCode::INTERNAL_SERVER_ERROR, 3));
    server.ok(CHAT, &chat(json!([image_url(2)]))).await;
    server.ok(CHAT, &chat(json!("text"))).await;
}

#[tokio::test]
async fn an_image_whose_client_has_left_is_not_computed() {
    let slow = SimulatedMedia { item_time: Duration::from_millis(500), ..SimulatedMedia::default() };
    let encoded = slow.encoded.clone();
    let server = Server::start(SimulatedModel { host: EngineHost::Thread, ..model_with(PARTS, slow) }).await;
    let bodies = [1, 2].map(|image| chat(json!([image_url(image)])));
    let both = async { tokio::join!(server.post(CHAT, &bodies[0]), server.post(CHAT, &bodies[1])) };
    let one_is_computed = async {
        while encoded.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The other one waits by then.
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::select! {
        _ = both => panic!("both clients leave while the first image is computed"),
        () = one_is_computed => {}
    }
    server.ok(CHAT, &chat(json!([image_url(3)]))).await;
    assert_eq!(encoded.load(Ordering::Relaxed), 2, "the second image was left out");
    server.settle().await;
}
