//! Transcripts of a tiny Whisper, which hears a recording window by window, through the HTTP API; and of a real one.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER cargo test --test transcriptions -- --include-ignored`

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Client;
use serde_json::{Value, json};

#[path = "support/clip.rs"]
mod clips;
#[path = "support/server_process.rs"]
mod server_process;
#[path = "support/wav.rs"]
mod wav_file;

use clips::clip;
use server_process::ServerProcess;
use wav_file::wav;

/// Samples of a window of the tiny model, and its rows.
const WINDOW: usize = 96 * 160;
const ROWS: u64 = 48;
/// Largest difference of a log-probability, in nats.
const GATE: f64 = 2e-3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/whisper")
}

async fn start() -> ServerProcess {
    ServerProcess::start_model(&folder().join("directory"), &["--alias", "whisper", "--kv-type", "f32"]).await
}

/// A clip of the generator as a WAV file.
fn recording(samples: usize) -> Vec<u8> {
    wav(&clip(samples))
}

/// The body of a form, whose boundary is `border`.
fn form(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part = format!("--border\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend(part.into_bytes());
    }
    body.extend(*b"--border\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
    body.extend(file);
    body.extend(*b"\r\n--border--\r\n");
    body
}

/// The status and the body of an answer.
async fn post(server: &ServerProcess, route: &str, file: &[u8], fields: &[(&str, &str)]) -> (u16, String) {
    let request = Client::new().post(format!("{}/v1/audio/{route}", server.url));
    let request = request.header("content-type", "multipart/form-data; boundary=border").body(form(file, fields));
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn transcribed(server: &ServerProcess, samples: usize, fields: &[(&str, &str)]) -> String {
    let (status, text) = post(server, "transcriptions", &recording(samples), fields).await;
    assert_eq!(status, 200, "{text}\n{}", server.log());
    text
}

async fn object(server: &ServerProcess, samples: usize, fields: &[(&str, &str)]) -> Value {
    serde_json::from_str(&transcribed(server, samples, fields).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_recording_is_heard_in_windows_and_their_texts_come_in_order() {
    let server = start().await;
    let samples = 2 * WINDOW + 9000;
    let whole = object(&server, samples, &[]).await;
    let windows = server.metric("cuelight_audio_windows_encoded_total").await;
    assert!((3.0..=4.0).contains(&windows), "{windows}");
    assert_eq!(whole["usage"]["input_tokens"], json!(windows as u64 * (ROWS + 1)));
    assert!(whole["text"].as_str().unwrap().len() > 10, "{whole}");
    let text = transcribed(&server, samples, &[("response_format", "text")]).await;
    assert_eq!(text, whole["text"], "the windows were found again");
    assert_eq!(server.metric("cuelight_audio_windows_encoded_total").await, windows);
    let streamed = transcribed(&server, samples, &[("stream", "true")]).await;
    let events: Vec<Value> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (end, deltas) = events.split_last().unwrap();
    assert_eq!((deltas.len(), &end["type"]), (windows as usize, &json!("transcript.text.done")));
    let joined: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!((joined.trim(), &end["usage"]), (whole["text"].as_str().unwrap(), &whole["usage"]));
    assert_eq!(end["text"], whole["text"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_those_of_the_recording() {
    let server = start().await;
    let samples = 2 * WINDOW + 9000;
    let verbose = object(&server, samples, &[("response_format", "verbose_json"), ("language", "german")]).await;
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &json!("german")));
    assert_eq!(verbose["duration"], json!(samples as f64 / 16_000.0));
    let segments = verbose["segments"].as_array().unwrap();
    assert!(segments.len() > 2, "{verbose}");
    let time = |segment: &Value, key: &str| segment[key].as_f64().unwrap();
    for segment in segments {
        assert!(time(segment, "start") <= time(segment, "end") && time(segment, "end") <= samples as f64 / 16_000.0);
        assert!(time(segment, "avg_logprob") < 0.0 && !segment["tokens"].as_array().unwrap().is_empty());
    }
    // Each window starts where the one before ended.
    assert!(time(segments.last().unwrap(), "end") > 2.0 * WINDOW as f64 / 16_000.0 * 0.8);
    let joined: String = segments.iter().map(|segment| segment["text"].as_str().unwrap()).collect();
    assert_eq!(verbose["text"], joined.trim());
    let srt = transcribed(&server, samples, &[("response_format", "srt")]).await;
    assert!(srt.starts_with("1\n00:00:0") && srt.contains(" --> 00:00:0"), "{srt}");
    let vtt = transcribed(&server, samples, &[("response_format", "vtt")]).await;
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0"), "{vtt}");
}

const WORDS: [(&str, &str); 4] = [
    ("response_format", "verbose_json"),
    ("language", "en"),
    ("timestamp_granularities[]", "segment"),
    ("timestamp_granularities[]", "word"),
];

#[tokio::test(flavor = "multi_thread")]
async fn words_have_times_that_increase_over_all_windows() {
    let server = start().await;
    let samples = 2 * WINDOW + 9000;
    let without = object(&server, samples, &WORDS[..2]).await;
    assert_eq!(without.get("words"), None);
    let windows = server.metric("cuelight_audio_windows_encoded_total").await;
    let both = object(&server, samples, &WORDS).await;
    assert_eq!(server.metric("cuelight_audio_windows_encoded_total").await, windows, "the rows are known");
    for same in ["segments", "text", "usage"] {
        assert_eq!(both[same], without[same]);
    }
    let words = both["words"].as_array().unwrap();
    let number = |word: &Value, name: &str| word[name].as_f64().unwrap();
    let mut before = 0.0;
    for word in words {
        assert!(number(word, "start") >= before && number(word, "end") >= number(word, "start"), "{words:?}");
        before = number(word, "end");
    }
    assert!(words.len() > 2 && before <= samples as f64 / 16_000.0, "{words:?}");
    assert!(before > 2.0 * WINDOW as f64 / 16_000.0 * 0.8, "the last words are in the last window: {words:?}");
    let letters = |text: &str| text.split_whitespace().collect::<String>();
    let joined: String = words.iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!(letters(&joined), letters(both["text"].as_str().unwrap()));
    let only = object(&server, samples, &[&WORDS[..2], &WORDS[3..]].concat()).await;
    assert_eq!((&only["words"], only.get("segments")), (&both["words"], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn words_have_the_same_times_next_to_others_and_in_small_chunks() {
    let server = start().await;
    let alone = object(&server, 2 * WINDOW, &WORDS).await;
    let others = [9000, 2 * WINDOW, 11_000, 2 * WINDOW].map(|samples| object(&server, samples, &WORDS));
    let [_, second, _, last] = futures_util::future::join_all(others).await.try_into().unwrap();
    assert_eq!((&second, &last), (&alone, &alone));
    // A test program runs one server at a time.
    drop(server);
    let flags = ["--alias", "whisper", "--kv-type", "f32", "--prefill-chunk", "5", "--no-prefix-cache"];
    let chunked = ServerProcess::start_model(&folder().join("directory"), &flags).await;
    assert_eq!(object(&chunked, 2 * WINDOW, &WORDS).await, alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_language_is_found_or_given_and_another_one_is_refused() {
    let server = start().await;
    let found = object(&server, 9000, &[("response_format", "verbose_json")]).await;
    assert!(["english", "chinese", "german"].contains(&found["language"].as_str().unwrap()), "{found}");
    for (fields, named) in [
        (&[("language", "fr")][..], "it knows en, zh, de"),
        (&[("response_format", "diarized_json")], "verbose_json, srt, vtt"),
        (&[("timestamp_granularities[]", "word")], "verbose_json"),
        (&[("timestamp_granularities[]", "letter")], "\\\"segment\\\" or \\\"word\\\", not letter"),
        (&[("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("stream", "true")], "stream"),
    ] {
        let (status, message) = post(&server, "transcriptions", &recording(9000), fields).await;
        assert!(status == 400 && message.contains(named), "{message}");
    }
    let words = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let (status, message) = post(&server, "translations", &recording(9000), &words).await;
    assert!(status == 400 && message.contains("the words of a translation"), "{message}");
    let (status, translated) =
        post(&server, "translations", &recording(9000), &[("response_format", "verbose_json")]).await;
    assert!(status == 200 && translated.contains("\"translate\""), "{translated}");
    let (status, silent) = post(&server, "transcriptions", &wav(&[0; 20_000]), &[]).await;
    assert_eq!((status, serde_json::from_str::<Value>(&silent).unwrap()["text"].clone()), (200, json!("")), "{silent}");
    let (status, message) = post(&server, "transcriptions", b"no audio", &[]).await;
    assert!(status == 400 && message.contains("`file`"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_a_guess_is_decoded_again_unless_the_client_states_a_temperature() {
    let server = start().await;
    let verbose = [("response_format", "verbose_json"), ("language", "en")];
    let fallen_back = object(&server, 9000, &verbose).await;
    let fallbacks = server.metric("cuelight_transcription_fallbacks_total").await;
    assert!((1.0..=5.0).contains(&fallbacks), "a random model guesses: {fallbacks}");
    assert_eq!(object(&server, 9000, &verbose).await, fallen_back, "each attempt has the same seed");
    assert_eq!(server.metric("cuelight_transcription_fallbacks_total").await, 2.0 * fallbacks);
    let stated = object(&server, 9000, &[&verbose[..], &[("temperature", "0.7")]].concat()).await;
    assert_eq!(server.metric("cuelight_transcription_fallbacks_total").await, 2.0 * fallbacks);
    for (heard, temperature) in [(&fallen_back, fallbacks / 5.0), (&stated, 0.7)] {
        for segment in heard["segments"].as_array().unwrap() {
            let number = |name: &str| segment[name].as_f64().unwrap();
            assert!((number("temperature") - temperature).abs() < 1e-9, "{heard}");
            assert!(
                number("avg_logprob") < 0.0 && number("compression_ratio") > 0.0 && number("seek") == 0.0,
                "{heard}"
            );
        }
    }
    assert_eq!(server.metric("cuelight_audio_windows_encoded_total").await, 1.0, "the encoder's rows were kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probability_of_silence_is_that_after_the_start_of_the_transcript() {
    const NO_SPEECH: u32 = 409;
    let server = start().await;
    let verbose = object(&server, 9000, &[("response_format", "verbose_json"), ("temperature", "0.7")]).await;
    let found = verbose["segments"][0]["no_speech_prob"].as_f64().unwrap();
    let audio = json!({ "data": STANDARD.encode(recording(9000)), "format": "wav" });
    let body = json!({
        "messages": [{ "role": "user", "content": [{ "type": "input_audio", "input_audio": audio }] }], "max_tokens": 1,
        "logprobs": true, "logprob_token_ids": [NO_SPEECH],
    });
    let answer = Client::new().post(format!("{}/v1/chat/completions", server.url)).json(&body).send().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    let expected = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"];
    assert!((found.ln() - expected.as_f64().unwrap()).abs() < 1e-5, "{found}: {answer}");
}

/// Runs `cuelight transcribe` with the tiny model.
fn transcribe(more: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("CUELIGHT_CALIBRATE", "off");
    let output = command.arg("transcribe").arg(folder().join("directory")).args(more).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn files_are_transcribed_in_the_terminal() {
    let files = tempfile::tempdir().unwrap();
    let [long, short] = [("long.wav", 2 * WINDOW), ("short.wav", 9000)].map(|(name, samples)| {
        let path = files.path().join(name);
        std::fs::write(&path, recording(samples)).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let (is_done, text, log) = transcribe(&[&long]);
    assert!(is_done && text.trim().len() > 10 && text.ends_with('\n'), "{log}");
    let folder = files.path().join("out");
    let (is_done, nothing, log) =
        transcribe(&[&long, &short, "--format", "srt", "--language", "de", "--output", folder.to_str().unwrap()]);
    assert!(is_done && nothing.is_empty(), "{log}");
    for name in ["long.srt", "short.srt"] {
        assert!(std::fs::read_to_string(folder.join(name)).unwrap().starts_with("1\n00:00:0"), "{log}");
    }
    let (is_done, subtitles, log) = transcribe(&[&short, "--format", "srt", "--words"]);
    let (_, object, _) = transcribe(&[&short, "--format", "json", "--words"]);
    assert!(object.ends_with("}\n"), "{object}");
    let words: Value = serde_json::from_str(&object).unwrap();
    let words = words["words"].as_array().unwrap().len();
    assert!(is_done && words > 1 && subtitles.matches(" --> ").count() == words, "{log}");
    for (more, named) in [
        (&["/no/such.wav"][..], "/no/such.wav"),
        (&[&short, "--language", "fr"], "it knows en, zh, de"),
        (&[&short, "--words"], "--format json, srt or vtt"),
    ] {
        let (is_done, _, log) = transcribe(more);
        assert!(!is_done && log.contains(named), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_real_model_writes_what_is_said() {
    let models = std::env::var_os("CUELIGHT_TEST_MODELS").expect("CUELIGHT_TEST_MODELS names the folder of models");
    let server = ServerProcess::start_model(&PathBuf::from(models).join("whisper-base"), &[]).await;
    let speech = std::fs::read(folder().join("harbour.ogg")).unwrap();
    let (status, text) = post(&server, "transcriptions", &speech, &[WORDS[0], WORDS[2], WORDS[3]]).await;
    let heard: Value = serde_json::from_str(&text).unwrap();
    println!("{status} {heard}");
    let spoken = |word: &Value| (word["word"].as_str().unwrap().to_lowercase(), word["start"].as_f64().unwrap());
    let spoken: Vec<(String, f64)> = heard["words"].as_array().unwrap().iter().map(spoken).collect();
    // Found with Whisper's own method in Python.
    for (word, start) in [("quiet", 0.86), ("storm", 1.84), ("fishermen", 2.74), ("tied", 3.15)] {
        let found = spoken.iter().find(|(found, _)| found.starts_with(word)).unwrap();
        assert!((found.1 - start).abs() <= 0.06, "{found:?} instead of {start}");
    }
    let words: String = heard["text"].as_str().unwrap().to_lowercase();
    let words: Vec<&str> =
        words.split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty()).collect();
    // Some models take the boats of this voice for goats.
    let said = "quiet before the storm and the fishermen tied their";
    assert!(words.join(" ").contains(said), "{heard}");
    assert_eq!(heard["language"], "english");
    let number = |name: &str| heard["segments"][0][name].as_f64().unwrap();
    assert!((4.0..=4.88).contains(&number("end")), "{heard}");
    assert!(number("temperature") == 0.0 && number("avg_logprob") > -0.8 && number("no_speech_prob") < 0.2, "{heard}");
    assert_eq!(server.metric("cuelight_transcription_fallbacks_total").await, 0.0);
    // Noise of five seconds, about 50 dB below the loudest speech.
    let mut state = 1_u32;
    let noise: Vec<i16> = (0..80_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as i16 / 256
        })
        .collect();
    for format in ["json", "verbose_json"] {
        let (status, text) = post(&server, "transcriptions", &wav(&noise), &[("response_format", format)]).await;
        let silent: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &silent["text"]), (200, &json!("")), "{silent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_with_a_recording_continues_it_and_one_without_is_refused() {
    let server = start().await;
    let expected: Value = serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    let data = STANDARD.encode(recording(expected["samples"].as_u64().unwrap() as usize));
    let body = |content: Value| {
        json!({
            "model": "whisper", "messages": [{ "role": "user", "content": content }], "max_tokens": 1, "temperature": 0,
            "logprobs": true, "top_logprobs": 20, "return_token_ids": true, "return_tokens_as_token_ids": true,
        })
    };
    let ask = async |content: Value| {
        let request = Client::new().post(format!("{}/v1/chat/completions", server.url)).json(&body(content));
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    let audio = json!({ "type": "input_audio", "input_audio": { "data": data, "format": "wav" } });
    let answer = ask(json!([audio])).await;
    let prompt = &expected["prompts"][0];
    assert_eq!(answer["prompt_token_ids"], prompt["tokens"]);
    let found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap();
    for top in prompt["top"].as_array().unwrap() {
        let name = format!("token_id:{}", top[0]);
        let found = found.iter().find(|found| found["token"] == name.as_str()).unwrap()["logprob"].as_f64().unwrap();
        assert!((found - top[1].as_f64().unwrap()).abs() < GATE, "{name}: {found} instead of {}", top[1]);
    }
    for content in [json!("Hello"), json!([{ "type": "text", "text": "Hello" }])] {
        let refused = ask(content).await;
        assert!(
            refused["error"]["message"].as_str().unwrap().contains("writes what it hears and nothing else"),
            "{refused}"
        );
    }
}
