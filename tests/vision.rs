//! `cuelight serve` and `cuelight run` with vision towers: log-probabilities and answers of tiny models, compared with transformers
//! through the HTTP API.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, Rgb, RgbImage};
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "support/server_process.rs"]
mod server_process;

use server_process::ServerProcess;

/// Largest difference of a log-probability, in nats. A color of a resized image may differ by one step of 8 bits.
const GATE: f64 = 0.02;

const FAMILIES: [&str; 20] = [
    "exaone4_5",
    "gemma3",
    "gemma4",
    "gemma4-e",
    "gemma4_unified",
    "glm4v",
    "glm5v",
    "glm_ocr",
    "idefics3",
    "internvl",
    "lfm2",
    "lfm3",
    "ling3vl",
    "llava",
    "paddleocr_vl",
    "pixtral",
    "qwen2vl",
    "qwen2_5vl",
    "qwen3vl",
    "qwen3_5",
];

/// Those whose directory has the language model too.
const DIRECTORIES: [&str; 16] = [
    "exaone4_5",
    "gemma4",
    "gemma4-e",
    "gemma4_unified",
    "glm4v",
    "glm5v",
    "glm_ocr",
    "lfm2",
    "lfm3",
    "ling3vl",
    "paddleocr_vl",
    "pixtral",
    "qwen2vl",
    "qwen2_5vl",
    "qwen3vl",
    "qwen3_5",
];

/// The expected values of a model, of which `tests/generate/vision.py` writes more.
#[derive(Deserialize)]
struct Expected {
    placeholder: String,
    images: Vec<Size>,
    prompts: Vec<ExpectedPrompt>,
}

#[derive(Deserialize)]
struct Size {
    width: u32,
    height: u32,
}

#[derive(Deserialize)]
struct ExpectedPrompt {
    tokens: Vec<u32>,
    /// The most likely tokens after the prompt.
    top: Vec<(u32, f64)>,
    greedy: Vec<u32>,
    /// How much more likely than the second each of these is.
    margins: Vec<f64>,
}

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision").join(family)
}

fn expected(family: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(folder(family).join("expected.json")).unwrap()).unwrap()
}

/// The image that the generator makes by the same formula, as a PNG file.
fn png(Size { width, height }: &Size) -> Vec<u8> {
    let color = |x: u32, y: u32, color: u32| ((x * 7 + y * 13 + color * 50 + x * y % 17 * 5) % 256) as u8;
    let image = RgbImage::from_fn(*width, *height, |x, y| Rgb([0, 1, 2].map(|index| color(x, y, index))));
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// A chat template that writes the prompt of the fixtures, in a file.
fn template(placeholder: &str, directory: &Path) -> PathBuf {
    let part = "{% if part.type == 'image' %}PLACEHOLDER{% else %}{{ part.text }}{% endif %}";
    let content = "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}PART\
                   {% endfor %}{% endif %}";
    let source = "{% for message in messages %}<|im_start|>{{ message.role }}\nCONTENT<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let source = source.replace("CONTENT", &content.replace("PART", &part.replace("PLACEHOLDER", placeholder)));
    let path = directory.join("template.jinja");
    std::fs::write(&path, source).unwrap();
    path
}

fn flags<'a>(mmproj: &'a str, template: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let common = ["--alias", "model", "--mmproj", mmproj, "--chat-template", template, "--kv-type", "f32"];
    [&common[..], more].concat()
}

async fn start(family: &str, more: &[&str]) -> ServerProcess {
    let directory = tempfile::tempdir().unwrap();
    let template = template(&expected(family).placeholder, directory.path());
    let mmproj = folder(family).join("mmproj.gguf");
    let flags = flags(mmproj.to_str().unwrap(), template.to_str().unwrap(), more);
    ServerProcess::start_model(&folder(family).join("text.gguf"), &flags).await
}

async fn ask(server: &ServerProcess, content: Value, more: Value) -> Value {
    let mut body = json!({
        "model": "model", "messages": [{ "role": "user", "content": content }], "max_tokens": 12, "temperature": 0,
        "ignore_eos": true, "logprobs": true, "top_logprobs": 5, "return_token_ids": true, "return_tokens_as_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let url = format!("{}/v1/chat/completions", server.url);
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{text}\n{}", server.log());
    serde_json::from_str(&text).unwrap()
}

fn image_of(size: &Size) -> Value {
    json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{}", STANDARD.encode(png(size))) } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The question of the fixtures.
fn question(size: &Size) -> Value {
    json!([text("The harbour "), image_of(size), text(" was quiet before the storm.")])
}

/// Checks an answer to the question of the fixtures.
fn check(answer: &Value, prompt: &ExpectedPrompt, what: &str) {
    assert_eq!(answer["prompt_token_ids"], json!(prompt.tokens), "{what}");
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.tokens.len());
    let choice = &answer["choices"][0];
    let found = choice["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap();
    for (token, expected) in &prompt.top {
        let name = format!("token_id:{token}");
        let found = found.iter().find(|found| found["token"] == name.as_str());
        let found = found.unwrap_or_else(|| panic!("{what}: no {name} in {choice}"))["logprob"].as_f64().unwrap();
        assert!((found - expected).abs() < GATE, "{what}: {name} has {found} instead of {expected}");
    }
    let sure = prompt.margins.iter().take_while(|margin| **margin > 2.0 * GATE).count();
    let tokens: Vec<Value> = choice["token_ids"].as_array().unwrap().iter().take(sure).cloned().collect();
    assert_eq!(json!(tokens), json!(prompt.greedy[..sure]), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_images_are_those_of_transformers() {
    for family in FAMILIES {
        let Expected { images, prompts, .. } = expected(family);
        let (size, prompt) = (&images[0], &prompts[0]);
        let server = start(family, &[]).await;
        assert!(server.log().contains("images: "), "{}", server.log());
        let first = ask(&server, question(size), json!({})).await;
        check(&first, prompt, family);
        // From the caches, and next to other requests.
        let other = &images[1];
        let (again, different, alone) = tokio::join!(
            ask(&server, question(size), json!({})),
            ask(&server, question(other), json!({})),
            ask(&server, json!("The harbour was quiet."), json!({})),
        );
        assert_eq!(again["choices"], first["choices"], "{family}: the same bits");
        assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 32, "{family}");
        assert_ne!(different["choices"][0]["logprobs"], first["choices"][0]["logprobs"], "{family}");
        assert!(alone["choices"][0]["message"]["content"].is_string());
        assert_eq!(server.metric("cuelight_images_encoded_total").await, 2.0);
        assert_eq!(server.metric("cuelight_image_cache_hits_total").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_all_that_a_model_needs() {
    for family in DIRECTORIES {
        let Expected { images, prompts, .. } = expected(family);
        let directory = folder(family).join("directory");
        let server = ServerProcess::start_model(&directory, &["--alias", "model", "--kv-type", "f32"]).await;
        check(&ask(&server, question(&images[0]), json!({})).await, &prompts[0], family);
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("harbour.png");
    std::fs::write(&image, png(&expected("qwen3vl").images[0])).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
    command.arg("run").arg(folder("qwen3vl").join("directory")).arg("--image").arg(&image);
    command.args(["--max-tokens", "5", "--temp", "0", "--verbose", "What is this?"]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("images: Qwen 3 ViT"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_chunk_size_and_no_cache_changes_a_bit() {
    for family in ["gemma3", "gemma4", "gemma4-e", "idefics3", "lfm2"] {
        let Expected { images, .. } = expected(family);
        let content =
            || json!([text("The "), image_of(&images[0]), text(" and "), image_of(&images[1]), text(" storm.")]);
        let mut answers = Vec::new();
        for flags in [&[][..], &["--prefill-chunk", "3", "--no-prefix-cache"], &["--media-cache", "0"]] {
            let server = start(family, flags).await;
            let ask = || ask(&server, content(), json!({}));
            let (one, two) = tokio::join!(ask(), ask());
            answers.extend([one["choices"].clone(), two["choices"].clone()]);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{family}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tower_is_found_next_to_the_model_and_one_of_another_model_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(folder("llava").join("text.gguf"), directory.path().join("model.gguf")).unwrap();
    std::fs::copy(folder("llava").join("mmproj.gguf"), directory.path().join("mmproj-f32.gguf")).unwrap();
    let server = ServerProcess::start_model(&directory.path().join("model.gguf"), &[]).await;
    assert!(server.log().contains("images: "), "{}", server.log());
    drop(server);
    let without = ServerProcess::start_model(&directory.path().join("model.gguf"), &["--no-mmproj"]).await;
    assert!(!without.log().contains("images: "));
    drop(without);
    // Gemma's row token is not in LLaVA's vocabulary.
    std::fs::copy(folder("gemma3").join("mmproj.gguf"), directory.path().join("mmproj-f32.gguf")).unwrap();
    let other = ServerProcess::start_model(&directory.path().join("model.gguf"), &[]).await;
    assert!(other.log().contains("does not belong to"), "{}", other.log());
    drop(other);
    let given = folder("gemma3").join("mmproj.gguf");
    let refused = Command::new(env!("CARGO_BIN_EXE_cuelight"))
        .args(["serve", "--port", "0", "--mmproj"])
        .arg(&given)
        .arg(directory.path().join("model.gguf"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && message.contains("model.gguf") && message.contains("mmproj.gguf"),
        "{message}"
    );
}

#[test]
fn one_image_is_asked_about_in_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let Expected { images, placeholder, .. } = expected("gemma3");
    let (template, image) = (template(&placeholder, directory.path()), directory.path().join("harbour.png"));
    std::fs::write(&image, png(&images[0])).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
        command
            .arg("run")
            .arg(folder("gemma3").join("text.gguf"))
            .arg("--mmproj")
            .arg(folder("gemma3").join("mmproj.gguf"));
        command
            .arg("--chat-template")
            .arg(&template)
            .args(["--max-tokens", "5", "--temp", "0", "--verbose"])
            .args(more);
        let output = command.arg("What is this?").stdin(Stdio::null()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_answered, log) = run(&["--image", image.to_str().unwrap()]);
    assert!(is_answered && log.contains("images: "), "{log}");
    let (is_answered, log) = run(&["--image", "/no/such/image.png"]);
    assert!(!is_answered && log.contains("/no/such/image.png"), "{log}");
    let (is_answered, log) = run(&["--no-mmproj", "--image", image.to_str().unwrap()]);
    assert!(!is_answered && log.contains("takes no images"), "{log}");
}
