//! The rules of the code base, as tests: layers, imports, words, sizes, and links between documents.
//!
//! Each rule has a control that shows it failing on an input that breaks the rule.

#![allow(clippy::unwrap_used)]

mod dependencies;
mod imports;
mod tree;
mod words;

use std::fs;
use std::path::Path;

use tree::{assert_none, code, files, root, rust_files, without_tests};

/// The dependencies of a manifest that are among `forbidden`.
fn forbidden_dependencies(manifest: &str, forbidden: &[&str]) -> Vec<String> {
    let names = manifest.lines().filter_map(|line| line.split(['=', '.']).next().map(str::trim));
    names.filter(|name| forbidden.contains(name)).map(str::to_owned).collect()
}

#[test]
fn dependencies_point_one_way() {
    let serving = ["tokio", "ractor", "axum", "clap", "async-stream", "futures-util", "hf-hub", "metrics", "cuelight"];
    let of_shaders = [&serving[..], &["cuelight-engine", "tokenizers", "minijinja", "serde"]].concat();
    for (manifest, forbidden) in [("src/Cargo.toml", &serving[..]), ("shaders/Cargo.toml", &of_shaders[..])] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let text = text.split_once("[dependencies]").unwrap().1;
        assert_none(&format!("{manifest} depends on"), forbidden_dependencies(text, forbidden));
    }
    assert_eq!(forbidden_dependencies("tokio = \"1\"\nserde.workspace = true", &of_shaders), ["tokio", "serde"]);
}

fn names_a_device_type(text: &str) -> Option<&'static str> {
    let forbidden = ["unsafe ", " ash::", "cuelight_shaders"];
    forbidden.into_iter().find(|word| code(text).contains(word))
}

#[test]
fn actors_have_no_unsafe_code_and_no_device_types() {
    let offenders = files("actors", ".rs")
        .into_iter()
        .filter_map(|(name, text)| Some(format!("{name}: {}", names_a_device_type(&text)?)));
    assert_none("found in actors/", offenders.collect());
    assert_eq!(names_a_device_type("use ash::vk;"), Some(" ash::"));
}

/// Whether code names the command line, which only `actors/cli` and `actors/config` know.
fn names_a_flag(text: &str) -> bool {
    let is_flag = |rest: &str| rest.starts_with(|next: char| next.is_ascii_lowercase());
    let strings = code(text);
    let mut quoted = strings.split('"').skip(1).step_by(2);
    quoted.any(|string| {
        string
            .split(|character: char| !(character.is_alphanumeric() || character == '-'))
            .any(|word| word.strip_prefix("--").is_some_and(is_flag))
    })
}

#[test]
fn computing_knows_no_flags() {
    let offenders = ["src", "shaders"].iter().flat_map(|folder| files(folder, ".rs"));
    let offenders = offenders.filter(|(name, text)| {
        let computes = !name.contains("/tests") && !name.ends_with("build.rs");
        computes && names_a_flag(text)
    });
    assert_none("files that name a flag of the command line", offenders.map(|(name, _)| name).collect());
    assert!(names_a_flag("#[error(\"too large: lower `--ctx`\")]"));
    assert!(!names_a_flag("let x = y--1; // \"--ctx\""));
}

#[test]
fn the_environment_is_read_in_the_configuration_only() {
    let offenders = rust_files().into_iter().filter(|(name, text)| {
        // Cargo passes the paths of a build to its build script as variables.
        let may = name.starts_with("actors/config") || name.ends_with("build.rs");
        let is_test = name.contains("/tests/");
        !may && (!is_test && without_tests(text).contains("env::var") || text.contains("env::set_var"))
    });
    assert_none("files that read the environment", offenders.map(|(name, _)| name).collect());
}

/// The words by which code could test for a model: one for each family.
fn family_words() -> Vec<String> {
    let families = files("src/model/arch", ".rs").into_iter();
    let stems = families.filter_map(|(name, _)| Some(Path::new(&name).file_stem()?.to_str()?.to_owned()));
    let words = stems.filter(|stem| stem != "mod" && stem != "family");
    let brands = ["llama", "qwen", "gemma", "mistral", "mixtral", "deepseek", "glm4", "gpt_oss", "gpt-oss"];
    words.chain(brands.map(str::to_owned)).collect()
}

fn names_a_family(text: &str) -> bool {
    let code = code(text).to_lowercase();
    // "empty" has the name of a family in it.
    let is_whole = |(start, word): (usize, &str)| {
        let joins = |letter: char| letter.is_ascii_alphabetic();
        !code[..start].ends_with(joins) && !code[start + word.len()..].starts_with(joins)
    };
    family_words().iter().any(|word| code.match_indices(word.as_str()).any(is_whole))
}

#[test]
fn no_kernel_or_backend_names_a_model() {
    let computes = |name: &str| ["shaders/", "src/backend", "src/graph"].iter().any(|folder| name.starts_with(folder));
    let offenders = rust_files().into_iter().filter(|(name, text)| {
        computes(name) && !name.contains("/tests/") && !name.ends_with("tests.rs") && names_a_family(text)
    });
    assert_none("files that compute and name a model family", offenders.map(|(name, _)| name).collect());
    assert!(names_a_family("if architecture == \"deepseek2\" {}") && !names_a_family("if queue.is_empty() {}"));
}

#[test]
fn a_family_is_one_short_file_of_data() {
    let families = files("src/model/arch", ".rs").into_iter().filter(|(_, text)| text.contains("const FAMILY"));
    let (mut count, mut long) = (0, Vec::new());
    for (name, text) in families {
        count += 1;
        let lines = text.lines().count();
        long.extend((lines > 60).then(|| format!("{name}: {lines} lines")));
    }
    assert!(count >= 12, "only {count} families were found");
    assert_none("families that take more than 60 lines", long);
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
fn no_file_is_longer_than_a_thousand_lines() {
    let offenders = rust_files().into_iter().filter(|(_, text)| text.lines().count() > 1000);
    assert_none("files over a thousand lines", offenders.map(|(name, _)| name).collect());
}

#[test]
fn a_quant_format_is_named_in_at_most_three_files() {
    for format in ["Q4_K", "Q5_1", "Q8_0"] {
        let type_name = format.replace('_', "");
        let names = |text: &str| {
            let code = code(text);
            code.contains(&format!("Format::{format}")) || code.contains(&type_name)
        };
        let naming = rust_files().into_iter().filter(|(name, text)| !name.ends_with("tests.rs") && names(text));
        let naming: Vec<String> = naming.map(|(name, _)| name).collect();
        assert!(naming.len() <= 3, "{format} is named in {naming:?}");
    }
}

/// The links of a document whose files do not exist.
fn broken_links(name: &str, text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let is_broken = |link: &&str| {
        let target = link.split('#').next().unwrap_or_default();
        !target.is_empty() && !target.contains("://") && !root().join(name).parent().unwrap().join(target).exists()
    };
    links.filter(is_broken).map(|link| format!("{name}: {link}")).collect()
}

/// The documents for users.
fn documents() -> Vec<(String, String)> {
    let read = |name: &str| (name.to_owned(), fs::read_to_string(root().join(name)).unwrap());
    files("docs", ".md").into_iter().chain(["README.md", "CHANGELOG.md"].map(read)).collect()
}

#[test]
fn links_between_documents_resolve() {
    assert_none("broken links", documents().iter().flat_map(|(name, text)| broken_links(name, text)).collect());
    assert_eq!(broken_links("README.md", "[a](docs/nothing.md)"), ["README.md: docs/nothing.md"]);
}

#[test]
fn no_package_registry_is_named() {
    // Written apart, so that this file does not name them either.
    let hosts =
        [["crates", ".io"], ["pypi", ".org"], ["npmjs", ".com"], ["pythonhosted", ".org"]].map(|parts| parts.concat());
    let everything = ["shaders", "src", "actors", "tests", "benches", "examples", "docs", "fuzz", ".ci"]
        .iter()
        .flat_map(|folder| [".rs", ".md", ".py", ".sh", ".toml", "run"].map(|ending| files(folder, ending)))
        .flatten();
    let offenders = everything.filter(|(_, text)| hosts.iter().any(|host| text.contains(host.as_str())));
    assert_none("files that name a registry", offenders.map(|(name, _)| name).collect());
}
