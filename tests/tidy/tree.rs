//! The files of the repository, as (path relative to the root, text).

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` whose names end with `ending`, sorted by path.
pub fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(folder)];
    while let Some(path) = pending.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The Rust files of the three crates.
pub fn rust_files() -> Vec<(String, String)> {
    ["shaders", "src", "actors"].iter().flat_map(|folder| files(folder, ".rs")).collect()
}

/// The part of a file before its unit tests: a `mod` with a body behind `#[cfg(test)]`, which other attributes may follow.
pub fn without_tests(text: &str) -> &str {
    let starts_tests = |at: &usize| {
        let mut lines = text[*at..].lines().skip(1).skip_while(|line| line.starts_with("#["));
        lines.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    let start = text.match_indices("#[cfg(test)]").map(|(at, _)| at).find(starts_tests);
    &text[..start.unwrap_or(text.len())]
}

/// The code of a file: without its unit tests and comments.
pub fn code(text: &str) -> String {
    let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    without_tests(text).lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Fails with a list, unless the list is empty.
#[track_caller]
pub fn assert_none(what: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}
