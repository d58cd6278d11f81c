//! JSON schemas of published test suites: what is accepted, refused, and wrongly accepted or rejected.
//!
//! The data is not part of the repository. `CUELIGHT_TEST_DATA` names a directory with the archives
//! `json-schema-test-suite.tar.xz` and `maskbench-sample.tar.xz`; `../shared/data` is looked at, too.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight::pipeline::simulation::tokenizer;
use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar, GrammarError};
use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::Value;

/// The directory of the archives. `None` when there is none.
fn data() -> Option<PathBuf> {
    let named = std::env::var_os("CUELIGHT_TEST_DATA").map(PathBuf::from);
    let shared = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let directory = named.unwrap_or_else(shared);
    let is_there = directory.join("json-schema-test-suite.tar.xz").exists();
    if !is_there {
        eprintln!("SKIPPED: no test data in {}; set CUELIGHT_TEST_DATA", directory.display());
    }
    is_there.then_some(directory)
}

/// The contents of an archive. `None` when there is no program that unpacks it.
fn extracted(archive: &Path) -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(directory.path()).status();
    let is_unpacked = status.is_ok_and(|status| status.success());
    if !is_unpacked {
        eprintln!("SKIPPED: {} cannot be unpacked; tar with xz is needed", archive.display());
    }
    is_unpacked.then_some(directory)
}

fn json_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// What became of all schemas and instances.
#[derive(Default)]
struct Tally {
    schemas: usize,
    refused: usize,
    /// Refusals that do not name a place in the schema.
    unplaced: Vec<String>,
    right: usize,
    wrongly_accepted: Vec<String>,
    wrongly_rejected: Vec<String>,
    compile_times: Vec<Duration>,
    mask_times: Vec<Duration>,
}

impl Tally {
    fn schema(&mut self, compiler: &ConstraintCompiler, name: &str, schema: &Value) -> Option<Constraint> {
        self.schemas += 1;
        let began = Instant::now();
        let compiled = compiler.compile(&Grammar::JsonSchema(schema.clone()));
        self.compile_times.push(began.elapsed());
        match compiled {
            Ok(constraint) => Some(constraint),
            Err(error) => {
                self.refused += 1;
                if !matches!(&error, GrammarError::Refused { pointer: Some(_), .. }) {
                    self.unplaced.push(format!("{name}: {error}"));
                }
                None
            }
        }
    }

    fn instance(&mut self, constraint: &Constraint, tokenizer: &Tokenizer, name: &str, data: &Value, valid: bool) {
        let accepted = self.accepts(constraint, tokenizer, &data.to_string());
        match (accepted, valid) {
            (true, false) => self.wrongly_accepted.push(name.to_owned()),
            (false, true) => self.wrongly_rejected.push(name.to_owned()),
            _ => self.right += 1,
        }
    }

    fn accepts(&mut self, constraint: &Constraint, tokenizer: &Tokenizer, text: &str) -> bool {
        let mut state = constraint.start();
        for token in tokenizer.encode(text, false, false).unwrap() {
            let began = Instant::now();
            let mask = state.mask();
            self.mask_times.push(began.elapsed());
            if !mask.is_ok_and(|mask| mask.allows(token)) || state.accept(token).is_err() {
                return false;
            }
        }
        state.is_accepting()
    }

    fn print(&mut self, name: &str) {
        println!(
            "{name}: {} schemas, {} refused; {} instances right, {} wrongly accepted, {} wrongly rejected",
            self.schemas,
            self.refused,
            self.right,
            self.wrongly_accepted.len(),
            self.wrongly_rejected.len()
        );
        for (what, times) in [("compile", &mut self.compile_times), ("mask", &mut self.mask_times)] {
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            println!("{name}: {what} p50 {:?}, p99 {:?}, longest {:?}", at(0.5), at(0.99), at(1.0));
        }
        self.unplaced.iter().take(20).for_each(|error| println!("  no place: {error}"));
        self.wrongly_accepted.iter().for_each(|name| println!("  accepted: {name}"));
        self.wrongly_rejected.iter().take(40).for_each(|name| println!("  rejected: {name}"));
    }
}

/// The vocabulary of single bytes, or one of a real model when `CUELIGHT_TEST_VOCABS` has it.
fn vocabulary() -> Arc<Tokenizer> {
    let real = std::env::var_os("CUELIGHT_TEST_VOCABS").map(|folder| Path::new(&folder).join("ggml-vocab-qwen2.gguf"));
    match real.filter(|file| file.exists()) {
        Some(file) => Arc::new(Tokenizer::from_gguf(&Gguf::open(&file).unwrap()).unwrap()),
        None => tokenizer(),
    }
}

fn compiler(tokenizer: &Arc<Tokenizer>) -> ConstraintCompiler {
    let compiler = ConstraintCompiler::new(tokenizer.clone(), tokenizer.vocab_size());
    // The first grammar of a model waits for the tree of its vocabulary.
    compiler.compile(&Grammar::JsonObject).unwrap();
    compiler
}

#[test]
fn the_json_schema_test_suite_is_not_contradicted() {
    let Some(data) = data() else { return };
    let Some(directory) = extracted(&data.join("json-schema-test-suite.tar.xz")) else { return };
    let tokenizer = vocabulary();
    let compiler = compiler(&tokenizer);
    let mut tally = Tally::default();
    for file in json_files(&directory.path().join("tests/draft2020-12")) {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        for group in read(&file).as_array().unwrap() {
            let name = format!("{stem}: {}", group["description"].as_str().unwrap());
            let Some(constraint) = tally.schema(&compiler, &name, &group["schema"]) else { continue };
            for test in group["tests"].as_array().unwrap() {
                let name = format!("{name}: {}", test["description"].as_str().unwrap());
                tally.instance(&constraint, &tokenizer, &name, &test["data"], test["valid"].as_bool().unwrap());
            }
        }
    }
    tally.print("JSON-Schema-Test-Suite");
    assert!(tally.wrongly_accepted.is_empty());
    // Formats are enforced, numbers are written in one way, and properties come in the order of the schema.
    assert!(tally.refused <= 230 && tally.wrongly_rejected.len() <= 23 && tally.right >= 545);
}

#[test]
fn the_sample_of_maskbench_is_not_contradicted() {
    let Some(data) = data() else { return };
    let Some(directory) = extracted(&data.join("maskbench-sample.tar.xz")) else { return };
    let tokenizer = vocabulary();
    let compiler = compiler(&tokenizer);
    let mut tally = Tally::default();
    for file in json_files(&directory.path().join("maskbench")) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let case = read(&file);
        let Some(constraint) = tally.schema(&compiler, &name, &case["schema"]) else { continue };
        for (index, test) in case["tests"].as_array().into_iter().flatten().enumerate() {
            let valid = test["valid"].as_bool().unwrap();
            tally.instance(&constraint, &tokenizer, &format!("{name} {index}"), &test["data"], valid);
        }
    }
    tally.print("MaskBench");
    assert!(tally.wrongly_accepted.is_empty());
    assert!(tally.refused <= 195 && tally.wrongly_rejected.len() <= 5 && tally.right >= 3341);
}
