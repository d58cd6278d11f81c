//! The fuzz targets: functions of bytes that panic when a property does not hold.
//!
//! libFuzzer calls them through `fuzz.rs`; `tests/fuzz_corpus.rs` calls them with each file of the corpus in a normal build.

mod api;
mod chat_template;
mod config;
mod constraint;
mod gguf;
mod hugging_face;
mod output_parser;
mod sse;
mod tokenizer_gguf;
mod tokenizer_json;
mod tokenizer_model;
mod tokenizer_tekken;

/// A target: the name of its corpus folder, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("gguf", gguf::run),
    ("hugging_face", hugging_face::run),
    ("tokenizer_gguf", tokenizer_gguf::run),
    ("tokenizer_json", tokenizer_json::run),
    ("tokenizer_model", tokenizer_model::run),
    ("tokenizer_tekken", tokenizer_tekken::run),
    ("chat_template", chat_template::run),
    ("chat_body", api::run_chat),
    ("completions_body", api::run_completions),
    ("responses_body", api::run_responses),
    ("sse", sse::run),
    ("config", config::run),
    ("constraint", constraint::run),
    ("output_parser", output_parser::run),
];

/// The parts of an input between zero bytes, as text. Bytes that are not UTF-8 become U+FFFD. Absent parts are empty.
fn text_parts<const N: usize>(data: &[u8]) -> [String; N] {
    let mut parts = data.splitn(N, |&byte| byte == 0);
    std::array::from_fn(|_| String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned())
}
