//! The list of families agrees with the checkpoints that prove it and with the table for users.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The classes of transformers whose values the checkpoints of each architecture are compared with.
fn classes() -> BTreeMap<String, BTreeSet<String>> {
    let mut classes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(repository().join("tests/fixtures/families")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        // "transformers VERSION CLASS, float32"
        let class = expected["oracle"].as_str().unwrap().split([' ', ',']).nth(2).unwrap().to_owned();
        let gguf = Gguf::open(path.with_extension("gguf")).unwrap();
        let architecture = gguf.str("general.architecture").unwrap().to_owned();
        classes.entry(architecture).or_default().insert(class);
    }
    classes
}

#[test]
fn every_family_has_a_checkpoint_and_a_line_in_the_table_of_models() {
    let classes = classes();
    let row = |family: &&Family| {
        let of_family =
            classes.get(family.architecture).unwrap_or_else(|| panic!("{} is unproved", family.architecture));
        let of_family: Vec<String> = of_family.iter().map(|class| format!("`{class}`")).collect();
        format!("| `{}` | {} | {} |", family.architecture, family.models, of_family.join(", "))
    };
    let expected: Vec<String> = FAMILIES.iter().map(row).collect();
    let page = std::fs::read_to_string(repository().join("docs/models.md")).unwrap();
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(found, expected, "docs/models.md must have these lines:\n{}\n", expected.join("\n"));
}

#[test]
fn every_architecture_is_listed_once() {
    let names: BTreeSet<&str> = known().into_iter().collect();
    assert_eq!(names.len(), FAMILIES.len());
}
