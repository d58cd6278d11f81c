//! Audio in requests, over a simulated model and a simulated encoder.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cuelight::api::ServerOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulated_media::SimulatedMedia;
use cuelight::pipeline::simulation::{SimulatedModel, media_tokenizer, transcribing_tokenizer};
use cuelight::serving::media_limits::MediaLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use common::{Answer, MODEL, Server};

#[path = "support/wav.rs"]
mod wav_file;

use wav_file::wav;

const CHAT: &str = "/v1/chat/completions";
const TRANSCRIBE: &str = "/v1/audio/transcriptions";

/// A template that takes lists of parts.
const PARTS: &str = "{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}\
                     {% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% elif part.type == 'audio' %}\
                     <|audio|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}\
                     {% if add_generation_prompt %}assistant:{% endif %}";

/// A template of texts and images, in which audio would be lost.
const NO_AUDIO: &str = "{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}\
                        {% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% elif part.type == 'text' %}\
                        {{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

fn model_with(template: &str, media: SimulatedMedia) -> SimulatedModel {
    model_of(media_tokenizer(), template, media)
}

fn model_of(tokenizer: Arc<Tokenizer>, template: &str, media: SimulatedMedia) -> SimulatedModel {
    let template =
        ChatTemplate::new(template, "", "").unwrap().with_plain_content(&tokenizer.markers(&[template])).unwrap();
    let model = SimulatedModel { chat_template: Some(Arc::new(template)), ..SimulatedModel::new(tokenizer) };
    SimulatedModel { end_one_in: u64::MAX, ..model }.with_media(media)
}

fn model() -> SimulatedModel {
    model_with(PARTS, SimulatedMedia::with_audio())
}

/// A clip of 20 rows.
fn clip(loudness: i16) -> Vec<u8> {
    wav(&vec![loudness; 20 * 160])
}

fn input_audio(loudness: i16) -> Value {
    json!({ "type": "input_audio", "input_audio": { "data": STANDARD.encode(clip(loudness)), "format": "wav" } })
}

fn audio_url(url: &str) -> Value {
    json!({ "type": "audio_url", "audio_url": { "url": url } })
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
async fn a_clip_decides_the_answer_and_is_found_again() {
    let model = model();
    let encoded = model.media.as_ref().unwrap().encoded.clone();
    let server = Server::start(model).await;
    let first = server.ok(CHAT, &chat(json!([input_audio(100), text("what?")]))).await;
    // "user:", the clip between its two tokens, "what?\n", "assistant:".
    assert_eq!(first["usage"]["prompt_tokens"], 5 + 22 + 6 + 10);
    let url = audio_url(&format!("data:audio/wav;base64,{}", STANDARD.encode(clip(100))));
    let again = server.ok(CHAT, &chat(json!([url, text("what?")]))).await;
    assert_eq!((answer_of(&again), encoded.load(Ordering::Relaxed)), (answer_of(&first), 1), "its rows were kept");
    let other = server.ok(CHAT, &chat(json!([input_audio(101), text("what?")]))).await;
    assert_ne!(answer_of(&other), answer_of(&first));
    assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "another clip is another prefix");
}

#[tokio::test]
async fn images_and_audio_stand_in_one_message() {
    let png = {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::RgbImage::new(20, 10).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        format!("data:image/png;base64,{}", STANDARD.encode(bytes.into_inner()))
    };
    let image = json!({ "type": "image_url", "image_url": { "url": png } });
    let content = json!([input_audio(3), text("and"), image, text("?")]);
    for template in [PARTS, "{% for message in messages %}{{ message.content }}{% endfor %}"] {
        let server = Server::start(model_with(template, SimulatedMedia::with_audio())).await;
        let answer = server.ok(CHAT, &chat(content.clone())).await;
        assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 2 * 22);
    }
}

#[tokio::test]
async fn a_template_that_knows_no_audio_gets_it_as_text() {
    let server = Server::start(model_with(NO_AUDIO, SimulatedMedia::with_audio())).await;
    let answer = server.ok(CHAT, &chat(json!([input_audio(100), text("what?")]))).await;
    // A line break is between the clip and the text.
    assert_eq!(answer["usage"]["prompt_tokens"], 5 + 22 + 1 + 6 + 10);
}

#[tokio::test]
async fn what_a_model_takes_is_listed_and_other_media_are_refused_by_name() {
    let server = Server::start(model()).await;
    let listed = server.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["architecture"]["input_modalities"], json!(["text", "image", "audio"]));
    assert_eq!(server.get("/props").await.json()["modalities"], json!({ "vision": true, "audio": true }));
    let images_only = Server::start(model_with(PARTS, SimulatedMedia::default())).await;
    for (server, accepted) in
        [(images_only, "text and images only"), (Server::start(common::model()).await, "text only")]
    {
        for part in [input_audio(1), audio_url("https://example.org/a.wav")] {
            let answer = server.post(CHAT, &chat(json!([part]))).await;
            assert_eq!(answer.status, 400);
            let message = answer.text();
            assert!(message.contains("messages[0].content[0].type") && message.contains(accepted), "{message}");
        }
    }
}

#[tokio::test]
async fn files_beyond_the_limits_are_refused_with_the_setting() {
    let limits = MediaLimits { audio: 2, audio_bytes: 20_000, audio_seconds: 1, ..MediaLimits::default() };
    let options = ServerOptions { media: limits, ..ServerOptions::new(MODEL) };
    let server = Server::start_with(model(), RuntimeOptions::default(), options).await;
    let of = |bytes: Vec<u8>| json!({ "type": "input_audio", "input_audio": { "data": STANDARD.encode(bytes) } });
    let slow = {
        // The same bytes at 4 kHz last longer.
        let mut bytes = wav(&[0; 6_000]);
        bytes[24..28].copy_from_slice(&4_000_u32.to_le_bytes());
        bytes
    };
    for (content, reason) in [
        (json!([of(wav(&[0; 20_000]))]), "--max-audio-size"),
        (json!([of(slow)]), "--max-audio-seconds"),
        (json!([input_audio(1), input_audio(2), input_audio(3)]), "--max-audio"),
        (json!([of(b"OggS and more".to_vec())]), "it is not a WAV, MP3, FLAC, Ogg Vorbis, Opus, WebM or AAC file"),
        (json!([of(wav(&[0; 10]))]), "too few"),
        (json!([audio_url("https://example.org/a.wav")]), "--media-host"),
        (json!([{ "type": "input_audio", "input_audio": { "format": "wav" } }]), "input_audio.data"),
    ] {
        let answer = server.post(CHAT, &chat(content)).await;
        assert_eq!(answer.status, 400, "{reason}");
        assert!(answer.text().contains(reason), "{reason}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_responses_api_takes_audio_and_tools_may_return_it() {
    let server = Server::start(model()).await;
    let content = json!([input_audio(5), { "type": "input_text", "text": "what?" }]);
    let body = json!({ "model": MODEL, "input": [{ "role": "user", "content": content }], "max_output_tokens": 4 });
    let answer = server.ok("/v1/responses", &body).await;
    assert_eq!(answer["usage"]["input_tokens"], 5 + 22 + 6 + 10);
}

/// Sends a form with a file and fields.
async fn transcribe(server: &Server, file: Option<&[u8]>, fields: &[(&str, &str)]) -> Answer {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes());
    }
    if let Some(file) = file {
        body.extend(*b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
        body.extend_from_slice(file);
        body.extend(*b"\r\n");
    }
    body.extend(*b"--x--\r\n");
    let request = Request::post(TRANSCRIBE).header("content-type", "multipart/form-data; boundary=x");
    server.call(request.body(Body::from(body)).unwrap()).await
}

#[tokio::test]
async fn a_file_is_transcribed_as_json_as_text_and_as_events() {
    let server = Server::start(model()).await;
    let file = clip(100);
    let fields = [("model", MODEL), ("max_tokens", "6"), ("language", "en"), ("prompt", "Cuelight")];
    let whole = transcribe(&server, Some(&file), &fields).await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    let (text, usage) = (whole.json()["text"].as_str().unwrap().to_owned(), whole.json()["usage"].clone());
    assert_eq!((usage["type"].as_str(), usage["output_tokens"].as_u64()), (Some("tokens"), Some(6)));
    assert!(usage["input_tokens"].as_u64().unwrap() > 22);
    let plain = transcribe(&server, Some(&file), &[&fields[..], &[("response_format", "text")]].concat()).await;
    assert_eq!(plain.text(), text);
    let streamed = transcribe(&server, Some(&file), &[&fields[..], &[("stream", "true")]].concat()).await.text();
    let events: Vec<Value> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let done = events.last().unwrap();
    assert_eq!((done["type"].as_str(), &done["usage"]), (Some("transcript.text.done"), &usage));
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((deltas.trim(), done["text"].as_str().unwrap()), (text.as_str(), deltas.as_str()));
    assert!(!streamed.contains("[DONE]"));
}

#[tokio::test]
async fn a_model_that_only_transcribes_gets_the_audio_without_instructions() {
    let server = Server::start(model_of(transcribing_tokenizer(), PARTS, SimulatedMedia::with_audio())).await;
    let file = clip(100);
    // "user:", the clip between its two tokens, the end of the line, "assistant:".
    const AUDIO: u64 = 5 + 22 + 1 + 10;
    // "language English" and the tag, which is one token.
    const ENGLISH: u64 = 16 + 1;
    for (fields, expected) in [
        (vec![], AUDIO),
        (vec![("language", "en")], AUDIO + ENGLISH),
        (vec![("language", "English"), ("prompt", "Cuelight")], AUDIO + ENGLISH + "system:Cuelight\n".len() as u64),
    ] {
        let answer = transcribe(&server, Some(&file), &[&fields[..], &[("max_tokens", "6")]].concat()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["usage"]["input_tokens"].as_u64(), Some(expected), "{fields:?}");
    }
    let answer = transcribe(&server, Some(&file), &[("language", "tlh")]).await;
    assert!(answer.status == 400 && answer.text().contains("`language` is"), "{}", answer.text());
}

#[tokio::test]
async fn forms_that_are_not_read_are_refused_by_field() {
    let server = Server::start(model()).await;
    let file = clip(1);
    for (file, fields, reason) in [
        (None, vec![], "file"),
        (Some(&file[..]), vec![("response_format", "srt")], "response_format"),
        (Some(&file[..]), vec![("temperature", "hot")], "temperature"),
        (Some(&b"text"[..]), vec![], "`file` cannot be used"),
    ] {
        let answer = transcribe(&server, file, &fields).await;
        assert_eq!(answer.status, 400, "{reason}");
        assert!(answer.text().contains(reason), "{}", answer.text());
    }
    let json = server.post(TRANSCRIBE, &json!({ "model": MODEL })).await;
    assert_eq!(json.status, 415, "{}", json.text());
    let without = Server::start(common::model()).await;
    let answer = transcribe(&without, Some(&file), &[]).await;
    assert!(answer.status == 400 && answer.text().contains("text only"), "{}", answer.text());
}

#[tokio::test]
async fn voice_messages_and_recordings_of_browsers_are_taken_by_both_routes() {
    let server = Server::start(model()).await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio_files");
    // The rows of 0.25 seconds; those of WebM end with the last packet, 0.26 or 0.27 seconds after the start.
    for (name, rows) in [("voice.opus", 25..=25), ("tone.opus", 25..=25), ("tone.webm", 25..=27)] {
        let file = std::fs::read(folder.join(name)).unwrap();
        let part =
            json!({ "type": "input_audio", "input_audio": { "data": STANDARD.encode(&file), "format": "opus" } });
        let answer = server.ok(CHAT, &chat(json!([part, text("what?")]))).await;
        // "user:", the clip between its two tokens, "what?\n", "assistant:".
        let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap() - (5 + 2 + 6 + 10);
        assert!(rows.contains(&tokens), "{name}: {tokens}");
        let transcript = transcribe(&server, Some(&file), &[("model", MODEL), ("max_tokens", "6")]).await;
        assert_eq!(transcript.status, 200, "{name}: {}", transcript.text());
    }
}
