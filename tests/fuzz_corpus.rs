//! Every file of the fuzzing corpus through its target, in a normal build. Inputs of fixed faults are among the files.
#![allow(clippy::unwrap_used)]

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A template may nest deeper than the stack of a test's thread allows; rendering has a process with a larger one.
const STACK_BYTES: usize = 64 << 20;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn files(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus().join(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Runs a target on the files of its folder. The name of the file that fails is printed.
fn check(target: &str) {
    let (_, run) = targets::TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let paths = files(target);
    assert!(paths.len() >= 3, "the corpus of {target} has {} files", paths.len());
    let run_all = move || {
        for path in paths {
            eprintln!("{}", path.display());
            run(&fs::read(&path).unwrap());
        }
        run(&[]);
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run_all).unwrap().join().unwrap();
}

#[test]
fn gguf() {
    check("gguf");
}

#[test]
fn hugging_face() {
    check("hugging_face");
}

#[test]
fn tokenizer_gguf() {
    check("tokenizer_gguf");
}

#[test]
fn tokenizer_json() {
    check("tokenizer_json");
}

#[test]
fn tokenizer_model() {
    check("tokenizer_model");
}

#[test]
fn tokenizer_tekken() {
    check("tokenizer_tekken");
}

#[test]
fn chat_template() {
    check("chat_template");
}

#[test]
fn chat_body() {
    check("chat_body");
}

#[test]
fn completions_body() {
    check("completions_body");
}

#[test]
fn responses_body() {
    check("responses_body");
}

#[test]
fn sse() {
    check("sse");
}

#[test]
fn config() {
    check("config");
}

#[test]
fn constraint() {
    check("constraint");
}

#[test]
fn output_parser() {
    check("output_parser");
}

#[test]
fn every_target_has_a_corpus_and_the_corpus_is_small() {
    const MOST_BYTES: u64 = 100 << 10;
    let named: BTreeSet<String> = targets::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let folders = fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(named, folders.collect());
    for target in named {
        let bytes: u64 = files(&target).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(bytes <= MOST_BYTES, "the corpus of {target} has {bytes} bytes");
    }
}
