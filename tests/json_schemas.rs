//! JSON schemas of published test suites: what grammars and comparisons accept, refuse, and wrongly accept or reject.
//!
//! The data is not part of the repository. `CUELIGHT_TEST_DATA` names a directory with the archives
//! `json-schema-test-suite.tar.xz` and `maskbench-sample.tar.xz`; `../shared/data` is looked at, too.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight::output::SchemaCheck;
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
        self.compiled(name, compiled)
    }

    fn compiled<T>(&mut self, name: &str, compiled: Result<T, GrammarError>) -> Option<T> {
        match compiled {
            Ok(compiled) => Some(compiled),
            Err(error) => {
                self.refused += 1;
                if !matches!(&error, GrammarError::Refused { pointer: Some(_), .. }) {
                    self.unplaced.push(format!("{name}: {error}"));
                }
                None
            }
        }
    }

    fn instance(&mut self, instance: &Instance, accepted: bool) {
        match (accepted, instance.valid) {
            (true, false) => self.wrongly_accepted.push(instance.name.clone()),
            (false, true) => self.wrongly_rejected.push(instance.name.clone()),
            _ => self.right += 1,
        }
    }

    /// Constrains texts by the schemas, and writes each instance as JSON.
    fn constrain(&mut self, cases: &[Case]) {
        let tokenizer = vocabulary();
        let compiler = compiler(&tokenizer);
        for case in cases {
            let Some(constraint) = self.schema(&compiler, &case.name, &case.schema) else { continue };
            for instance in &case.instances {
                let accepted = self.accepts(&constraint, &tokenizer, &instance.data.to_string());
                self.instance(instance, accepted);
            }
        }
    }

    /// Compares the instances with the schemas. Each schema that has a grammar can be compared.
    fn compare(&mut self, cases: &[Case]) {
        let compiler = compiler(&tokenizer());
        for case in cases {
            self.schemas += 1;
            let began = Instant::now();
            let check = SchemaCheck::of(&case.schema);
            self.compile_times.push(began.elapsed());
            // In the schema of a call that of the arguments is a part, so that it says nothing about the draft.
            let mut part = case.schema.clone();
            part.as_object_mut().and_then(|keywords| keywords.remove("$schema"));
            let has_grammar = || compiler.compile(&Grammar::JsonSchema(part)).is_ok();
            assert!(check.is_ok() || !has_grammar(), "{}: {check:?}", case.name);
            let Some(check) = self.compiled(&case.name, check) else { continue };
            for instance in &case.instances {
                let began = Instant::now();
                let accepted = check.accepts(&instance.data);
                self.mask_times.push(began.elapsed());
                self.instance(instance, accepted);
            }
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
        for (what, times) in [("compile", &mut self.compile_times), ("mask or comparison", &mut self.mask_times)] {
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            println!("{name}: {what} p50 {:?}, p99 {:?}, longest {:?}", at(0.5), at(0.99), at(1.0));
        }
        self.unplaced.iter().take(20).for_each(|error| println!("  no place: {error}"));
        self.wrongly_accepted.iter().take(40).for_each(|name| println!("  accepted: {name}"));
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

/// A schema with values.
struct Case {
    name: String,
    schema: Value,
    instances: Vec<Instance>,
}

/// A value, and whether it is an instance of the schema.
struct Instance {
    name: String,
    data: Value,
    valid: bool,
}

impl Case {
    fn of(name: String, case: &Value) -> Case {
        let tests = case["tests"].as_array().into_iter().flatten().enumerate();
        let instances = tests.map(|(index, test)| {
            let test_name = test["description"].as_str().map_or_else(|| index.to_string(), str::to_owned);
            let valid = test["valid"].as_bool().unwrap();
            Instance { name: format!("{name}: {test_name}"), data: test["data"].clone(), valid }
        });
        Case { schema: case["schema"].clone(), instances: instances.collect(), name }
    }
}

fn test_suite() -> Option<Vec<Case>> {
    let directory = extracted(&data()?.join("json-schema-test-suite.tar.xz"))?;
    let mut cases = Vec::new();
    for file in json_files(&directory.path().join("tests/draft2020-12")) {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let name = |group: &Value| format!("{stem}: {}", group["description"].as_str().unwrap());
        cases.extend(read(&file).as_array().unwrap().iter().map(|group| Case::of(name(group), group)));
    }
    Some(cases)
}

fn sample_of_maskbench() -> Option<Vec<Case>> {
    let directory = extracted(&data()?.join("maskbench-sample.tar.xz"))?;
    let files = json_files(&directory.path().join("maskbench"));
    Some(
        files
            .iter()
            .map(|file| Case::of(file.file_stem().unwrap().to_string_lossy().into_owned(), &read(file)))
            .collect(),
    )
}

#[test]
fn the_json_schema_test_suite_is_not_contradicted() {
    let Some(cases) = test_suite() else { return };
    let mut tally = Tally::default();
    tally.constrain(&cases);
    tally.print("JSON-Schema-Test-Suite");
    assert!(tally.wrongly_accepted.is_empty());
    // Formats are enforced, numbers are written in one way, and properties come in the order of the schema.
    assert!(tally.refused <= 230 && tally.wrongly_rejected.len() <= 23 && tally.right >= 545);
}

#[test]
fn the_sample_of_maskbench_is_not_contradicted() {
    let Some(cases) = sample_of_maskbench() else { return };
    let mut tally = Tally::default();
    tally.constrain(&cases);
    tally.print("MaskBench");
    assert!(tally.wrongly_accepted.is_empty());
    assert!(tally.refused <= 195 && tally.wrongly_rejected.len() <= 5 && tally.right >= 3341);
}

#[test]
fn values_are_compared_as_the_json_schema_test_suite_does() {
    let Some(cases) = test_suite() else { return };
    let mut tally = Tally::default();
    tally.compare(&cases);
    tally.print("JSON-Schema-Test-Suite, compared");
    assert!(tally.wrongly_accepted.is_empty());
    // Formats are enforced, and a schema cannot take keywords out of the vocabulary.
    assert!(tally.refused <= 205 && tally.wrongly_rejected.len() <= 11 && tally.right >= 650);
}

#[test]
fn values_are_compared_as_the_sample_of_maskbench_does() {
    let Some(cases) = sample_of_maskbench() else { return };
    let mut tally = Tally::default();
    tally.compare(&cases);
    tally.print("MaskBench, compared");
    assert!(tally.wrongly_accepted.is_empty());
    // Keywords next to a reference count, also in drafts in which they did not.
    assert!(tally.refused <= 136 && tally.wrongly_rejected.len() <= 2 && tally.right >= 3481);
}
