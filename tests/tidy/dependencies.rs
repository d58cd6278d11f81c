//! The packages that a build contains: where they come from, and their licences.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::tree::{assert_none, root};

/// Licences that allow distribution in a program under MIT or Apache-2.0, with the text of the licence and nothing more.
const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "0BSD",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// Packages under other licences, with the reason why they may be used.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Their sources are used unchanged, which is all that this licence asks for.
    ("option-ext", "MPL-2.0"),
    ("symphonia", "MPL-2.0"),
    ("symphonia-bundle-flac", "MPL-2.0"),
    ("symphonia-bundle-mp3", "MPL-2.0"),
    ("symphonia-codec-aac", "MPL-2.0"),
    ("symphonia-codec-pcm", "MPL-2.0"),
    ("symphonia-codec-vorbis", "MPL-2.0"),
    ("symphonia-common", "MPL-2.0"),
    ("symphonia-core", "MPL-2.0"),
    ("symphonia-format-isomp4", "MPL-2.0"),
    ("symphonia-format-mkv", "MPL-2.0"),
    ("symphonia-format-ogg", "MPL-2.0"),
    ("symphonia-format-riff", "MPL-2.0"),
    ("symphonia-metadata", "MPL-2.0"),
];

/// Whether a licence expression can be met with allowed licences alone.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim();
    // The outermost operator; OR binds weaker than AND. The slash is an old way to write OR.
    for (operator, all) in [(" OR ", false), ("/", false), (" AND ", true)] {
        let parts = split_outside_brackets(expression, operator);
        if parts.len() > 1 {
            return if all { parts.into_iter().all(is_allowed) } else { parts.into_iter().any(is_allowed) };
        }
    }
    match expression.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => is_allowed(inner),
        None => ALLOWED.contains(&expression),
    }
}

fn split_outside_brackets<'a>(text: &'a str, operator: &str) -> Vec<&'a str> {
    let depth = |at: usize| text[..at].matches('(').count() - text[..at].matches(')').count();
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices(operator).filter(|(at, _)| depth(*at) == 0) {
        parts.push(&text[start..at]);
        start = at + operator.len();
    }
    parts.push(&text[start..]);
    parts
}

/// Name and licence of each package that a build for this machine contains.
fn packages(manifest: &str) -> Vec<(String, String)> {
    let version = Command::new("rustc").arg("-vV").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let manifest = root().join(manifest);
    let metadata = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            host,
            "--manifest-path",
        ])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.map(|package| (text(&package["name"]), text(&package["license"]))).collect()
}

#[test]
fn every_licence_is_allowed() {
    let packages = packages("Cargo.toml");
    assert!(packages.len() > 100, "only {} packages were found", packages.len());
    let is_exception = |name: &str, licence: &str| EXCEPTIONS.contains(&(name, licence));
    let offenders = packages.into_iter().filter(|(name, licence)| !is_allowed(licence) && !is_exception(name, licence));
    assert_none(
        "packages with other licences",
        offenders.map(|(name, licence)| format!("{name}: {licence}")).collect(),
    );
}

#[test]
fn licence_expressions_are_understood() {
    for allowed in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND ISC", "Apache-2.0 WITH LLVM-exception OR MIT"]
    {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND (GPL-3.0 OR MPL-2.0)", "MIT WITH Something"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}

/// The sources of a lock file's packages that are not `registry`; packages of the repository itself have none.
fn other_sources(lock: &str) -> Vec<String> {
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = ")).map(|source| source.trim_matches('"'));
    let mut others: Vec<String> = sources.filter(|source| !is_public_registry(source)).map(str::to_owned).collect();
    others.dedup();
    others
}

/// Written apart, because no file names the registry.
fn is_public_registry(source: &str) -> bool {
    source == ["registry+https://github.com/rust-lang/crates", ".io-index"].concat()
}

#[test]
fn every_package_comes_from_the_registry() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let text = fs::read_to_string(root().join(lock)).unwrap();
        assert_none(&format!("{lock} has packages from"), other_sources(&text));
    }
    assert_eq!(other_sources("source = \"git+https://example.org/x\""), ["git+https://example.org/x"]);
}

/// The packages that both lock files have, in versions of which none is the same.
fn only_in_other_versions(ours: &str, fuzzed: &str) -> Vec<String> {
    let versions = |lock: &str, name: &str| -> Vec<String> {
        let header = format!("name = \"{name}\"\n");
        lock.split("[[package]]\n")
            .filter_map(|entry| entry.strip_prefix(&header)?.lines().next())
            .map(str::to_owned)
            .collect()
    };
    let names = ours.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let differ = |name: &&str| {
        let (ours, fuzzed) = (versions(ours, name), versions(fuzzed, name));
        !fuzzed.is_empty() && !fuzzed.iter().any(|version| ours.contains(version))
    };
    names.filter(differ).map(str::to_owned).collect()
}

#[test]
fn fuzzing_tests_the_versions_that_are_built() {
    let read = |lock: &str| fs::read_to_string(root().join(lock)).unwrap();
    assert_none(
        "fuzz/Cargo.lock has other versions of",
        only_in_other_versions(&read("Cargo.lock"), &read("fuzz/Cargo.lock")),
    );
    let lock = |version: u32| format!("[[package]]\nname = \"x\"\nversion = \"{version}\"\n");
    assert_eq!(only_in_other_versions(&lock(1), &lock(2)), ["x"]);
}
