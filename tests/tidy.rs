//! The house's invariants, as tests: layers, style that no lint checks, and links between documents.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with this ending, as (path relative to the root, text).
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
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

fn rust_files() -> Vec<(String, String)> {
    ["shaders", "src", "actors"].iter().flat_map(|folder| files(folder, ".rs")).collect()
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[track_caller]
fn assert_none(what: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}

#[test]
fn dependencies_point_one_way() {
    let outside = |manifest: &str, forbidden: &[&str]| {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let offenders = forbidden.iter().filter(|name| text.lines().any(|line| line.starts_with(*name)));
        assert_none(&format!("{manifest} depends on"), offenders.map(|name| (*name).to_owned()).collect());
    };
    let serving = ["tokio", "ractor", "axum", "clap", "async-stream", "futures", "hf-hub", "metrics", "cuelight ="];
    outside("src/Cargo.toml", &serving);
    outside("shaders/Cargo.toml", &serving);
    outside("shaders/Cargo.toml", &["cuelight-engine", "tokenizers", "minijinja", "serde"]);
}

#[test]
fn actors_hold_no_unsafe_code_and_no_device_types() {
    let forbidden = ["unsafe ", " ash::", "cuelight_shaders"];
    let offenders = files("actors", ".rs").into_iter().filter_map(|(name, text)| {
        let word = forbidden.iter().find(|word| without_tests(&text).contains(**word))?;
        Some(format!("{name}: {word}"))
    });
    assert_none("found in actors/", offenders.collect());
}

#[test]
fn the_environment_is_read_in_the_configuration_only() {
    let offenders = rust_files().into_iter().filter(|(name, text)| {
        // Cargo tells a build script by variables alone where to write.
        let may = name.starts_with("actors/config") || name.ends_with("build.rs");
        !may && (without_tests(text).contains("env::var") || text.contains("env::set_var"))
    });
    assert_none("files that read the environment", offenders.map(|(name, _)| name).collect());
}

#[test]
fn no_kernel_or_backend_names_a_model() {
    let families = ["llama", "qwen", "gemma", "mistral"];
    let offenders = rust_files().into_iter().filter(|(name, text)| {
        let computes = name.starts_with("shaders/") || name.starts_with("src/backend") || name.starts_with("src/graph");
        let is_test = name.contains("/tests/");
        let code: String = without_tests(text)
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        computes && !is_test && families.iter().any(|family| code.to_lowercase().contains(family))
    });
    assert_none("files that compute and name a model family", offenders.map(|(name, _)| name).collect());
}

#[test]
fn nothing_unfinished_is_left_in_the_code() {
    let words = ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"];
    let offenders = rust_files().into_iter().flat_map(|(name, text)| {
        words.iter().filter(|word| text.contains(**word)).map(|word| format!("{name}: {word}")).collect::<Vec<_>>()
    });
    assert_none("unfinished", offenders.collect());
}

#[test]
fn every_file_opens_with_its_reason() {
    let offenders = rust_files().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_none("files without a module doc", offenders.map(|(name, _)| name).collect());
}

#[test]
fn no_file_holds_more_than_one_idea_can_need() {
    let offenders = rust_files().into_iter().filter(|(_, text)| text.lines().count() > 1000);
    assert_none("files over a thousand lines", offenders.map(|(name, _)| name).collect());
}

#[test]
fn a_quant_format_is_named_in_at_most_three_files() {
    for format in ["Q4_K", "Q5_1", "Q8_0"] {
        let type_name = format.replace('_', "");
        let naming: Vec<String> = rust_files()
            .into_iter()
            .filter(|(name, _)| !name.ends_with("tests.rs"))
            .filter(|(_, text)| {
                let code: Vec<&str> =
                    without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//")).collect();
                code.iter().any(|line| line.contains(&format!("Format::{format}")) || line.contains(&type_name))
            })
            .map(|(name, _)| name)
            .collect();
        println!("{format} is named in {naming:?}");
        assert!(naming.len() <= 3, "{format} is named in {naming:?}");
    }
}

#[test]
fn every_op_has_a_float64_reference() {
    let offenders = files("shaders", ".rs").into_iter().filter_map(|(name, text)| {
        let folder = Path::new(&name).parent().unwrap().to_string_lossy().into_owned();
        let beside = fs::read_to_string(root().join(folder).join("reference.rs")).unwrap_or_default();
        let is_op = text.contains("impl Op for") && !name.ends_with("testing.rs");
        (is_op && !text.contains("f64") && !beside.contains("f64")).then_some(name)
    });
    // Ops that move values without arithmetic are compared for equality instead.
    let moves = ["select_rows.rs", "embed.rs", "shaders/heads.rs"];
    let offenders = offenders.filter(|name| !moves.iter().any(|file| name.ends_with(file)));
    assert_none("ops without a float64 reference", offenders.collect());
}

#[test]
fn links_between_documents_resolve() {
    let mut documents = files("docs", ".md");
    documents.push(("README.md".into(), fs::read_to_string(root().join("README.md")).unwrap()));
    let mut broken = Vec::new();
    for (name, text) in documents {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !root().join(&name).parent().unwrap().join(target).exists() {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    assert_none("broken links", broken);
}

#[test]
fn no_package_registry_is_named() {
    // Written apart, so that this file does not name them either.
    let hosts =
        [["crates", ".io"], ["pypi", ".org"], ["npmjs", ".com"], ["pythonhosted", ".org"]].map(|parts| parts.concat());
    let everything = ["shaders", "src", "actors", "tests", "benches", "examples", "docs", ".ci"]
        .iter()
        .flat_map(|folder| [".rs", ".md", ".py", ".sh", ".toml", "run"].map(|ending| files(folder, ending)))
        .flatten();
    let offenders = everything.filter(|(_, text)| hosts.iter().any(|host| text.contains(host.as_str())));
    assert_none("files that name a registry", offenders.map(|(name, _)| name).collect());
}
