//! Plain words: the terms of the field, in names, comments, messages and documents.

use std::fs;

use crate::tree::{assert_none, files, root};

/// Words that have a plain or a standard equivalent. A trailing `*` matches any ending.
const BANNED: &[(&str, &str)] = &[
    ("anew", "again"),
    ("beside", "next to, alongside"),
    ("reckon*", "estimate, compute"),
    ("so many", "a number or a name"),
    ("whoever", "the caller, the client, the thread"),
    ("whomever", "the caller, the client, the thread"),
    ("nobody", "no client, no thread"),
    ("somebody", "another client, another thread"),
    ("the processor", "the CPU"),
    ("the cast", "the actor tree"),
    ("in the house", "in flight"),
    ("thereof", "of it"),
    ("wherein", "where"),
    ("hitherto", "until now"),
    ("widen*", "upconvert"),
    ("BlockTable", "BlockManager"),
    ("with_causes", "error_chain"),
    ("work_beside", "run_overlapped"),
    ("RightOfWay", "YieldHint"),
    ("bulk_rows", "prefill_saturation_rows"),
    ("TokenChoice", "SamplingParams"),
    ("token_choice", "token_sampling"),
    ("Chooser", "TokenSampler"),
    ("EngineChoice", "EngineSampling"),
    ("DeviceNews", "DeviceEvent"),
    ("ExpertStance", "ExpertPlacement"),
    ("Unmade", "PendingWeights"),
    ("Clerk", "Worker"),
    ("ExpertDesk", "ExpertJobQueue"),
    ("owed", "deficit"),
];

/// Texts that quote others or list the words themselves.
const EXEMPT: &[&str] = &["docs/perf/journal.md", "tests/tidy/words.rs", "tests/fixtures/", "tests/generate/"];

/// The banned words in a text, each with its line.
fn found(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let of_line = |(number, line): (usize, &str)| {
        let line = line.to_lowercase();
        BANNED
            .iter()
            .filter(move |(word, _)| has(&line, word))
            .map(move |(word, instead)| (number + 1, *word, *instead))
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

/// Whether a line has a word, as a whole word unless it ends with `*`.
fn has(line: &str, word: &str) -> bool {
    let stem = word.trim_end_matches('*').to_lowercase();
    let is_letter = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    line.match_indices(&stem).any(|(at, _)| {
        let starts = !is_letter(line[..at].chars().next_back());
        starts && (word.ends_with('*') || !is_letter(line[at + stem.len()..].chars().next()))
    })
}

#[test]
fn texts_use_plain_words() {
    let folders = ["shaders", "src", "actors", "tests", "benches", "examples", "docs", ".ci"];
    let endings = [".rs", ".comp", ".glsl", ".md", ".py", ".sh", ".yml", ".toml", "run"];
    let everything = folders.iter().flat_map(|folder| endings.iter().flat_map(|ending| files(folder, ending)));
    let read = |name: &str| (name.to_owned(), fs::read_to_string(root().join(name)).unwrap());
    let readme = ["README.md", "CHANGELOG.md"].map(read);
    let read = everything.chain(readme).filter(|(name, _)| !EXEMPT.iter().any(|exempt| name.starts_with(exempt)));
    let offenders = read.flat_map(|(name, text)| {
        found(&text)
            .into_iter()
            .map(|(line, word, instead)| format!("{name}:{line}: \"{word}\"; say: {instead}"))
            .collect::<Vec<_>>()
    });
    assert_none("words with a plainer equivalent", offenders.collect());
}

#[test]
fn a_banned_word_is_found_as_a_word_only() {
    assert_eq!(
        found("fine\nNobody reckons.").iter().map(|(line, word, _)| (*line, *word)).collect::<Vec<_>>(),
        [(2, "reckon*"), (2, "nobody"),]
    );
    assert!(found("followed, besides, the processors").is_empty());
}
