//! Files and indexes that are whole or damaged.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::Safetensors;

/// The name and content of a file.
type NamedFile<'a> = (&'a str, Vec<u8>);

/// A file with this header and `data` zeros after it.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn folder(files: &[NamedFile<'_>]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn error_of(files: &[NamedFile<'_>]) -> String {
    Safetensors::open(folder(files).path()).map(drop).unwrap_err().to_string()
}

const ONE: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;

#[test]
fn a_file_gives_its_tensors_and_their_bytes() {
    let folder = folder(&[("model.safetensors", file(ONE, 24))]);
    let opened = Safetensors::open(folder.path()).unwrap();
    let tensor = opened.tensor("a").unwrap();
    assert_eq!((&tensor.shape[..], tensor.dtype.name), (&[2, 3][..], "F32"));
    assert_eq!(opened.bytes(tensor).unwrap().as_slice(), [0; 24]);
}

#[test]
fn every_damage_of_a_header_is_named_with_its_tensor() {
    let entry = |dtype: &str, shape: &str, range: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
    };
    let cases = [
        (entry("F99", "[1]", "[0,4]"), "tensor \"a\" has the unknown type \"F99\""),
        (entry("F32", "[2]", "[0,4]"), "tensor \"a\" occupies 4 bytes, but its shape needs 8"),
        (entry("F32", "[2]", "[8,0]"), "tensor \"a\" ends before it starts"),
        (entry("F32", "[2]", "[20,28]"), "tensor \"a\" lies outside the file: it ends at byte"),
        (entry("F32", "[18446744073709551615,9]", "[0,4]"), "tensor \"a\" is larger than any memory"),
        (entry("F32", "[0,18446744073709551615]", "[0,0]"), "tensor \"a\" is larger than any memory"),
        (entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "tensor \"a\" has 9 dimensions"),
        (entry("F32", "[-1]", "[0,4]"), "not a table of tensors: tensor \"a\": invalid value"),
        (r#"{"a":{"dtype":"U8","shape":[1]}}"#.to_owned(), "tensor \"a\": missing field `data_offsets`"),
        ("[]".to_owned(), "not a table of tensors"),
        (
            ONE.replace(
                "__metadata__\":{\"format\":\"pt\"}",
                "a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
            ),
            "tensor \"a\" appears twice",
        ),
    ];
    for (header, expected) in cases {
        let error = error_of(&[("model.safetensors", file(&header, 24))]);
        assert!(error.contains("model.safetensors: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn a_file_that_is_too_short_is_refused() {
    let whole = file(ONE, 24);
    for (length, expected) in [(0, "it has 0 bytes"), (7, "it has 7 bytes"), (20, "a length of"), (60, "a length of")] {
        let error = error_of(&[("model.safetensors", whole[..length].to_vec())]);
        assert!(error.contains(expected), "{error}");
    }
    let error = error_of(&[("model.safetensors", whole[..whole.len() - 1].to_vec())]);
    assert!(error.contains("tensor \"a\" lies outside the file"), "{error}");
    let mut absurd = whole.clone();
    absurd[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(error_of(&[("model.safetensors", absurd)]).contains("states a length of 18446744073709551615"));
}

fn index(map: &str) -> Vec<u8> {
    format!(r#"{{"metadata":{{"total_size":24}},"weight_map":{map}}}"#).into_bytes()
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn shards_are_joined() {
    let map = index(r#"{"a":"one.safetensors","b":"two.safetensors"}"#);
    let folder = folder(&[
        (INDEX, map),
        ("one.safetensors", file(ONE, 24)),
        ("two.safetensors", file(&ONE.replace("\"a\"", "\"b\""), 24)),
    ]);
    let opened = Safetensors::open(folder.path()).unwrap();
    let shards: Vec<usize> = opened.tensors().iter().map(|tensor| tensor.shard).collect();
    assert_eq!((opened.tensors().len(), shards), (2, vec![0, 1]));
    assert_eq!(opened.path(opened.tensor("b").unwrap()), folder.path().join("two.safetensors"));
}

#[test]
fn every_damage_of_an_index_is_named() {
    let one = || ("one.safetensors", file(ONE, 24));
    let two = || ("two.safetensors", file(ONE, 24));
    let cases: Vec<(Vec<NamedFile<'_>>, &str)> = vec![
        (
            vec![(INDEX, index(r#"{"a":"one.safetensors","b":"two.safetensors"}"#)), one()],
            "two.safetensors: the shard of tensor \"b\" is missing",
        ),
        (
            vec![(INDEX, index(r#"{"a":"one.safetensors","b":"two.safetensors"}"#)), one(), two()],
            "two.safetensors: tensor \"a\" is also in",
        ),
        (vec![(INDEX, index(r#"{"b":"one.safetensors"}"#)), one()], "one.safetensors: lacks the tensor \"b\""),
        (vec![(INDEX, index(r#"{"a":"../one.safetensors"}"#)), one()], "tensor \"a\" is said to be in \"../one"),
        (vec![(INDEX, index(r#"{"a":"one.bin"}"#)), one()], "tensor \"a\" is said to be in \"one.bin\""),
        (vec![(INDEX, index(r#"{"a":"one.safetensors","a":"one.safetensors"}"#)), one()], "tensor \"a\" appears twice"),
        (vec![(INDEX, index("{}")), one()], "names no file"),
        (vec![(INDEX, b"{".to_vec())], "not an index of safetensors files"),
        (vec![("pytorch_model.bin", vec![1])], "only pickled weights (pytorch_model.bin)"),
        (vec![("config.json", vec![])], "has neither model.safetensors nor"),
    ];
    for (files, expected) in cases {
        let error = error_of(&files);
        assert!(error.contains(expected), "{error}");
    }
    assert!(Safetensors::open(Path::new("/nonexistent")).is_err());
}
