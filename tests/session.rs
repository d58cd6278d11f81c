//! A model inside of another program: sessions over tiny checkpoints and over the simulated model, and an op from outside.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "../examples/own_op.rs"]
#[allow(dead_code)]
mod own_op;

use std::path::{Path, PathBuf};

use cuelight::core::request::{FinishReason, SamplingParams};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::{SimulatedModel, tokenizer};
use cuelight::session::{Ending, GenerateOptions, Message, Session, SessionError, SessionOptions, blocking};
use cuelight_engine::constraint::Grammar;
use cuelight_engine::engine::{LogitsWanted, TokenId};
use cuelight_engine::load::GivenTemplate;
use futures_util::StreamExt;

const BEGINNING: &str = "Once upon a time there was a small model of a few layers.";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

async fn open(name: &str) -> Session {
    let mut options = SessionOptions::new(fixture(name));
    options.load.threads = 2;
    Session::open(options).await.unwrap()
}

async fn tiny() -> Session {
    open("llama.gguf").await
}

async fn simulated(model: SimulatedModel) -> Session {
    Session::over(Runtime::start(model, RuntimeOptions::default()).await.unwrap()).await.unwrap()
}

fn most_likely(max_tokens: usize) -> GenerateOptions {
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    GenerateOptions {
        max_tokens: Some(max_tokens),
        sampling: Some(sampling),
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

/// The text of a generation, and how it ended.
async fn generate(session: &mut Session, options: &GenerateOptions) -> (String, Ending) {
    let mut stream = session.generate(options).await.unwrap();
    let mut all = String::new();
    while let Some(text) = stream.next().await {
        all.push_str(&text.unwrap());
    }
    (all, stream.ending().unwrap().clone())
}

async fn error(session: &mut Session, options: &GenerateOptions) -> String {
    session.generate(options).await.err().unwrap().to_string()
}

#[tokio::test]
async fn a_generation_in_parts_gives_the_tokens_of_one_in_whole() {
    let mut whole = tiny().await;
    whole.extend(BEGINNING).unwrap();
    let prompt = whole.tokens().len();
    let mut parts = whole.fork();
    let (_, ending) = generate(&mut whole, &most_likely(24)).await;
    assert_eq!((ending.reason, ending.usage.completion_tokens), (FinishReason::Length, 24));
    for count in [1, 16, 7] {
        generate(&mut parts, &most_likely(count)).await;
    }
    assert_eq!(parts.tokens(), whole.tokens());
    assert_eq!(whole.tokens().len(), prompt + 24);
}

#[tokio::test]
async fn forks_continue_independently_and_share_the_prefix() {
    let mut origin = tiny().await;
    origin.extend(BEGINNING).unwrap();
    generate(&mut origin, &most_likely(8)).await;
    let (mut one, mut two) = (origin.fork(), origin.fork());
    two.extend(" But").unwrap();
    let (options, other) = (most_likely(8), most_likely(8));
    let ((of_one, ending), (of_two, _)) = tokio::join!(generate(&mut one, &options), generate(&mut two, &other));
    assert!(ending.usage.cached_tokens >= 16, "{ending:?}");
    assert_ne!(of_one, of_two);
    let (of_origin, _) = generate(&mut origin, &most_likely(8)).await;
    assert_eq!(of_origin, of_one);
    assert_eq!(origin.tokens(), one.tokens());
}

#[tokio::test]
async fn a_reset_context_begins_again_with_what_the_model_has_kept() {
    let mut session = tiny().await;
    let mut texts = Vec::new();
    for _ in 0..2 {
        session.extend(BEGINNING).unwrap();
        texts.push(generate(&mut session, &most_likely(12)).await);
        session.reset();
        assert!(session.tokens().is_empty() && session.text().is_empty());
    }
    let [(first, before), (again, after)] = &texts[..] else { unreachable!() };
    assert_eq!(first, again);
    assert_eq!(before.usage.cached_tokens, 0);
    assert!(after.usage.cached_tokens >= 16, "{after:?}");
}

#[tokio::test]
async fn texts_and_tokens_are_appended_alike() {
    let mut texts = tiny().await;
    let mut tokens = texts.fork();
    texts.extend(BEGINNING).unwrap();
    tokens.extend_tokens(texts.tokens()).unwrap();
    let (one, _) = generate(&mut texts, &most_likely(6)).await;
    let (two, _) = generate(&mut tokens, &most_likely(6)).await;
    assert_eq!(one, two);
    assert!(texts.text().ends_with(&one), "{} does not end with {one}", texts.text());
}

#[tokio::test]
async fn the_first_text_begins_as_the_model_wants_it() {
    for (name, has_beginning) in [("llama.gguf", false), ("gemma3.gguf", true)] {
        let mut session = open(name).await;
        let tokenizer = session.model().tokenizer.clone();
        assert_eq!(tokenizer.added_bos().is_some(), has_beginning, "{name}");
        session.extend(BEGINNING).unwrap();
        assert_eq!(session.tokens(), tokenizer.encode(BEGINNING, true, true).unwrap(), "{name}");
        session.extend(" The end.").unwrap();
        let beginnings = session.tokens().iter().filter(|token| Some(**token) == tokenizer.added_bos()).count();
        assert_eq!(beginnings, usize::from(has_beginning), "{name}");
    }
}

#[tokio::test]
async fn what_is_read_of_a_stream_stays_in_the_context() {
    let mut session = tiny().await;
    session.extend(BEGINNING).unwrap();
    let before = session.tokens().len();
    let mut whole = session.fork();
    generate(&mut whole, &most_likely(40)).await;
    session.generate(&most_likely(40)).await.unwrap().next().await.unwrap().unwrap();
    let read = session.tokens().len();
    assert!((before + 1..before + 40).contains(&read), "{read} of {before}");
    assert_eq!(session.tokens(), &whole.tokens()[..read]);
    generate(&mut session, &most_likely(before + 40 - read)).await;
    assert_eq!(session.tokens(), whole.tokens());
}

#[tokio::test]
async fn the_token_by_which_a_model_ends_is_not_in_the_context() {
    let mut session = simulated(SimulatedModel { end_one_in: 4, ..common::model() }).await;
    let end = session.model().tokenizer.end_of_generation()[0];
    session.extend("hello").unwrap();
    let (text, ending) = generate(&mut session, &GenerateOptions::default()).await;
    assert_eq!(ending.reason, FinishReason::StopToken(end));
    assert!(!session.tokens().contains(&end));
    assert_eq!(session.text(), format!("hello{text}"));
}

#[tokio::test]
async fn a_stop_string_or_a_grammar_ends_a_text() {
    let mut session = simulated(SimulatedModel { end_one_in: u64::MAX, ..common::model() }).await;
    session.extend("hello").unwrap();
    let seeded = |max_tokens| {
        let sampling = SamplingParams { seed: Some(5), ..SamplingParams::default() };
        GenerateOptions { max_tokens: Some(max_tokens), sampling: Some(sampling), ..GenerateOptions::default() }
    };
    let (whole, _) = generate(&mut session.fork(), &seeded(60)).await;
    let stop: String = whole.chars().skip(20).take(3).collect();
    let options = GenerateOptions { stop: vec![stop.clone()], ..seeded(60) };
    let (text, ending) = generate(&mut session.fork(), &options).await;
    assert_eq!(ending.reason, FinishReason::StopString(stop.clone()));
    assert_eq!(text, whole.split(&stop).next().unwrap());
    let choices = ["yes".to_owned(), "no".to_owned()];
    let options = GenerateOptions { grammar: Some(Grammar::Choice(choices.to_vec())), ..seeded(60) };
    let (text, _) = generate(&mut session, &options).await;
    assert!(choices.contains(&text), "{text}");
}

#[tokio::test]
async fn a_conversation_is_rendered_and_continued() {
    let mut session = simulated(SimulatedModel { end_one_in: 8, ..common::model() }).await;
    let mut messages = vec![Message::new("user", "hi")];
    session.converse(&messages).await.unwrap();
    assert_eq!(session.text(), "user:hi\nassistant:");
    let (answer, _) = generate(&mut session, &GenerateOptions::default()).await;
    messages.extend([Message::new("assistant", &answer), Message::new("user", "more")]);
    session.converse(&messages).await.unwrap();
    assert_eq!(session.text(), format!("user:hi\nassistant:{answer}\nuser:more\nassistant:"));
}

#[tokio::test]
async fn what_a_publisher_recommends_next_to_a_file_applies() {
    let mut plain = tiny().await;
    plain.extend(BEGINNING).unwrap();
    let (text, _) = generate(&mut plain, &most_likely(24)).await;
    let stop: String = text.chars().filter(|letter| letter.is_ascii_alphabetic()).skip(4).take(1).collect();
    let mut options = SessionOptions::new(fixture("llama.gguf"));
    options.load.recommended.stop = vec![stop.clone()];
    options.load.recommended.system = Some("You are a lighthouse.".to_owned());
    options.load.recommended.sampling.stated.temperature = Some(0.0);
    let mut session = Session::open(options).await.unwrap();
    session.extend(BEGINNING).unwrap();
    let stopped = GenerateOptions { sampling: None, ..most_likely(24) };
    let (shorter, ending) = generate(&mut session.fork(), &stopped).await;
    assert_eq!(ending.reason, FinishReason::StopString(stop.clone()));
    assert_eq!(shorter, text.split(&stop).next().unwrap());
    let own = GenerateOptions { stop: vec!["never said".to_owned()], ..most_likely(24) };
    assert_eq!(generate(&mut session, &own).await.0, text);

    session.converse(&[Message::new("user", "hi")]).await.unwrap();
    assert!(session.text().contains("You are a lighthouse."), "{}", session.text());
    session.converse(&[Message::new("system", "Mine."), Message::new("user", "hi")]).await.unwrap();
    assert!(!session.text().contains("lighthouse") && session.text().contains("Mine."), "{}", session.text());
}

#[tokio::test]
async fn a_template_that_refuses_instructions_gets_none_that_were_not_asked_for() {
    let template = "{% if messages[0].role == 'system' %}{{ raise_exception('no instructions') }}{% endif %}\
                    {{ messages[0].content }}:";
    let mut options = SessionOptions::new(fixture("llama.gguf"));
    options.load.recommended.system = Some("You are a lighthouse.".to_owned());
    let given = GivenTemplate { path: "template.jinja".into(), source: template.to_owned() };
    options.load.chat_template.given = Some(given);
    let mut session = Session::open(options).await.unwrap();
    session.converse(&[Message::new("user", "hi")]).await.unwrap();
    assert_eq!(session.text(), "hi:");
    let refused = session.converse(&[Message::new("system", "Mine."), Message::new("user", "hi")]).await;
    assert!(refused.unwrap_err().to_string().contains("no instructions"));
}

#[tokio::test]
async fn a_stream_can_be_combined_with_others() {
    let mut session = tiny().await;
    session.extend(BEGINNING).unwrap();
    let mut fork = session.fork();
    let pieces: Vec<_> = fork.generate(&most_likely(9)).await.unwrap().into_stream().collect().await;
    let text: String = pieces.into_iter().map(Result::unwrap).collect();
    assert_eq!(session.generate(&most_likely(9)).await.unwrap().into_text().await.unwrap(), text);
}

#[tokio::test]
async fn wrong_input_is_refused_with_its_reason() {
    let missing = Session::open(SessionOptions::new("/no/such.gguf")).await.err().unwrap();
    assert!(matches!(missing, SessionError::Plan(_)) && missing.to_string().contains("/no/such.gguf"), "{missing}");

    let mut session = tiny().await;
    assert!(error(&mut session, &most_likely(1)).await.contains("the context is empty"));
    let token = session.model().limits.vocab_size as TokenId;
    let unknown = session.extend_tokens(&[1, token]).unwrap_err().to_string();
    assert!(unknown.contains(&format!("no token {token}")) && session.tokens().is_empty(), "{unknown}");
    let mut plain = simulated(SimulatedModel::new(tokenizer())).await;
    let refused = plain.converse(&[Message::new("user", "hi")]).await.unwrap_err().to_string();
    assert!(refused.contains("chat template"), "{refused}");

    session.extend(BEGINNING).unwrap();
    let cold = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    let cold = GenerateOptions { sampling: Some(cold), ..GenerateOptions::default() };
    assert!(error(&mut session, &cold).await.contains("temperature must be"));
    let grammar = Some(Grammar::Regex("(".to_owned()));
    let broken = GenerateOptions { grammar, ..GenerateOptions::default() };
    assert!(error(&mut session, &broken).await.contains("`grammar` cannot be enforced"));
    let context = session.model().limits.context_tokens;
    session.extend_tokens(&vec![5; context]).unwrap();
    let full = session.generate(&most_likely(1)).await.err().unwrap();
    assert!(matches!(full, SessionError::Submit(_)) && full.to_string().contains("context"), "{full}");
}

#[tokio::test]
async fn closing_a_session_unloads_the_model_of_its_forks() {
    let mut fork = simulated(common::model()).await;
    fork.extend("hello").unwrap();
    fork.fork().close().await;
    assert!(matches!(fork.generate(&most_likely(1)).await, Err(SessionError::Submit(_))));
}

#[test]
fn a_program_without_async_code_gets_the_same_text() {
    let threads = tokio::runtime::Runtime::new().unwrap();
    let expected = threads.block_on(async {
        let mut session = tiny().await;
        session.extend(BEGINNING).unwrap();
        generate(&mut session, &most_likely(20)).await
    });
    let mut session = blocking::Session::open(SessionOptions::new(fixture("llama.gguf"))).unwrap();
    session.extend(BEGINNING).unwrap();
    let mut forks = vec![session.fork(), session.fork()];
    let mut stream = session.generate(&most_likely(20)).unwrap();
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!((text, stream.ending().unwrap().reason.clone()), (expected.0.clone(), expected.1.reason));
    let run = |fork: &mut blocking::Session| fork.generate(&most_likely(20)).unwrap().map(Result::unwrap).collect();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = forks.iter_mut().map(|fork| scope.spawn(|| run(fork))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(texts, [expected.0.clone(), expected.0]);
    // Async code may drop one, although it cannot use one.
    threads.block_on(async move { drop(forks) });
    session.close();
}

#[test]
fn a_graph_runs_an_op_from_outside_of_the_crates() {
    let mut engine = own_op::engine(b"abracadabra").unwrap();
    let tokens = b"abr".map(TokenId::from).to_vec();
    let rows = own_op::rows(&mut engine, tokens, LogitsWanted::All).unwrap();
    let follows = |row: usize, byte: u8| rows[row * 256 + usize::from(byte)].exp();
    for (row, byte, expected) in [(0, b'b', 0.5), (0, b'c', 0.25), (1, b'r', 1.0), (2, b'a', 1.0), (2, b'z', 0.0)] {
        let found = follows(row, byte);
        assert!((found - expected).abs() < 0.12, "{} after byte {row}: {found}", char::from(byte));
    }
    for row in rows.chunks_exact(256) {
        let sum: f32 = row.iter().map(|value| value.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "the probabilities sum to {sum}");
    }
}
