//! Valid files, files with one fault, truncated and mutated files.

use std::fs;

use proptest::prelude::*;

use super::write::GgufBuilder;
use super::*;

/// A small file with every kind of value and two tensors.
fn example() -> GgufBuilder {
    GgufBuilder::new()
        .key("general.architecture", "llama")
        .key("llama.block_count", 2u32)
        .key("llama.context_length", 8192u64)
        .key("llama.rope.freq_base", 10000.5f32)
        .key("negative", -3i32)
        .key("yes", true)
        .key("tokens", vec!["a", "ß", "", "日本"])
        .key("scores", vec![0.5f32, -1.0])
        .key("types", vec![1i32, -3])
        .key("flags", vec![true, false])
        .tensor_f32("matrix", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .tensor_f32("vector", &[2], &[7.0, 8.0])
        .tensor_f32("cube", &[1, 2, 3], &[0.0; 6])
}

fn open(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes("model.gguf", bytes)
}

fn open_error(bytes: Vec<u8>) -> String {
    open(bytes).err().map(|error| error.to_string()).unwrap_or_default()
}

#[track_caller]
fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn every_type_of_value_is_read_back() {
    let gguf = open(example().build()).unwrap();
    assert_eq!(gguf.str("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.u32("llama.block_count").unwrap(), 2);
    assert_eq!(gguf.u32("llama.context_length").unwrap(), 8192);
    assert_eq!(gguf.f32("llama.rope.freq_base").unwrap(), 10000.5);
    assert!(gguf.bool("yes").unwrap());
    assert_eq!(gguf.strings("tokens").unwrap().collect::<Vec<_>>(), ["a", "ß", "", "日本"]);
    assert_eq!(gguf.strings("tokens").unwrap().len(), 4);
    assert_eq!(gguf.floats("scores").unwrap(), [0.5, -1.0]);
    assert_eq!(gguf.integers("types").unwrap(), [1, -3]);
    assert_eq!(gguf.bools("flags").unwrap(), [true, false]);
    assert_eq!(gguf.optional_u32("absent").unwrap(), None);
    let keys: Vec<&str> = gguf.metadata().iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys[..3], ["general.architecture", "llama.block_count", "llama.context_length"]);
}

#[test]
fn version_2_is_read_like_version_3() {
    assert!(open(example().version(2).build()).is_ok());
}

#[test]
fn getters_name_the_key_and_both_types() {
    let gguf = open(example().build()).unwrap();
    let message = |error: GgufError| error.to_string();
    assert_contains(&message(gguf.u32("absent").unwrap_err()), &["model.gguf", "\"absent\"", "unsigned 32-bit"]);
    assert_contains(&message(gguf.u32("yes").unwrap_err()), &["\"yes\"", "bool true", "unsigned 32-bit"]);
    assert_contains(&message(gguf.u32("negative").unwrap_err()), &["\"negative\"", "-3", "out of range"]);
    assert_contains(&message(gguf.strings("scores").unwrap_err()), &["[2 x f32]", "array of strings"]);
    assert_contains(&message(gguf.bool("general.architecture").unwrap_err()), &["string \"llama\"", "boolean"]);
}

#[test]
fn dimensions_fold_into_rows_and_columns() {
    let gguf = open(example().build()).unwrap();
    let shape = |name| gguf.weight(name).map(|weight| (weight.rows, weight.columns)).unwrap();
    assert_eq!(shape("matrix"), (2, 3));
    assert_eq!(shape("vector"), (1, 2));
    assert_eq!(shape("cube"), (6, 1));
    assert_eq!(gguf.weight("matrix").unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(gguf.weight("vector").unwrap().to_f32(), [7.0, 8.0]);
}

#[test]
fn integers_have_a_size_and_a_name() {
    let bytes = example().tensor("numbers", &[2], GGML_I32, [7_i32, -1].map(i32::to_le_bytes).concat()).build();
    let gguf = open(bytes).unwrap();
    let tensor = gguf.tensor("numbers").unwrap();
    assert_eq!((tensor.n_bytes, tensor.type_name()), (Some(8), "I32".to_owned()));
    assert_eq!(gguf.integers_of("numbers"), Some(vec![7, -1]));
    let cut = example().tensor("numbers", &[1 << 20], GGML_I32, vec![0; 8]).build();
    assert_contains(&open(cut).unwrap_err().to_string(), &["\"numbers\""]);
}

#[test]
fn an_unsupported_format_is_listed_and_refused_by_name_when_used() {
    let bytes = example().tensor("odd", &[256], 144, vec![0; 66]).build();
    let gguf = open(bytes).unwrap();
    assert_eq!(gguf.tensor("odd").unwrap().n_bytes, None);
    assert_contains(&gguf.weight("odd").unwrap_err().to_string(), &["\"odd\"", "IQ4_KS", "ik_llama.cpp"]);
    assert_contains(&gguf.weight("none").unwrap_err().to_string(), &["lacks the tensor \"none\""]);
}

#[test]
fn the_alignment_of_the_file_is_used_and_checked() {
    let gguf = open(example().alignment(128).build()).unwrap();
    assert!(gguf.tensors().iter().all(|tensor| tensor.start % 128 == 0));
    assert_eq!(gguf.weight("vector").unwrap().to_f32(), [7.0, 8.0]);
    assert_contains(&open_error(GgufBuilder::new().key("general.alignment", 24u32).build()), &["power of two", "24"]);
    assert_contains(&open_error(GgufBuilder::new().key("general.alignment", 0u32).build()), &["power of two"]);
    assert_contains(&open_error(GgufBuilder::new().key("general.alignment", "x").build()), &["power of two", "\"x\""]);
}

#[test]
fn other_file_types_and_versions_are_refused_by_name() {
    assert_contains(&open_error(Vec::new()), &["not a GGUF"]);
    assert_contains(&open_error(b"PK\x03\x04 something".to_vec()), &["not a GGUF"]);
    assert_contains(&open_error(example().version(1).build()), &["version 1", "2 and 3"]);
    assert_contains(&open_error(example().version(4).build()), &["version 4"]);
    assert_contains(&open_error(example().version(3u32.swap_bytes()).build()), &["big-endian"]);
}

#[test]
fn impossible_counts_and_lengths_are_refused_before_allocation() {
    for (offset, what) in [(8, "tensors"), (16, "keys")] {
        let mut bytes = GgufBuilder::new().build();
        bytes[offset..offset + 8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        assert_contains(&open_error(bytes), &["states 9223372036854775807", what]);
    }
    let mut bytes = GgufBuilder::new().key("k", "v").build();
    bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_contains(&open_error(bytes), &["truncated", "the name of key 0"]);
    let mut bytes = GgufBuilder::new().key("list", vec![1u32]).build();
    let length_at = 24 + 8 + 4 + 4 + 4;
    bytes[length_at..length_at + 8].copy_from_slice(&(1u64 << 62).to_le_bytes());
    assert_contains(&open_error(bytes), &["\"list\"", "elements"]);
}

#[test]
fn arrays_of_arrays_are_refused() {
    let bytes = GgufBuilder::new().key("deep", vec![vec![1u32]]).build();
    assert_contains(&open_error(bytes), &["\"deep\"", "array of arrays"]);
}

#[test]
fn wrong_values_are_refused_by_key() {
    assert_contains(&open_error(GgufBuilder::new().key("k", 1u32).key("k", 2u32).build()), &["\"k\"", "twice"]);
    let mut bytes = GgufBuilder::new().key("flag", true).build();
    *bytes.last_mut().unwrap() = 7;
    assert_contains(&open_error(bytes), &["\"flag\"", "7", "0 or 1"]);
    let mut bytes = GgufBuilder::new().key("text", "x").build();
    *bytes.last_mut().unwrap() = 0xff;
    assert_contains(&open_error(bytes), &["\"text\"", "UTF-8"]);
    let mut bytes = GgufBuilder::new().key("k", 1u32).build();
    bytes[24 + 8 + 1] = 99;
    assert_contains(&open_error(bytes), &["\"k\"", "unknown value type 99"]);
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let one = |dims: &[u64], n_bytes| GgufBuilder::new().tensor("t", dims, 0, vec![0; n_bytes]).build();
    assert_contains(&open_error(one(&[1; 5], 4)), &["\"t\"", "5 dimensions"]);
    assert_contains(&open_error(one(&[1 << 40, 1 << 40], 4)), &["\"t\"", "larger than any memory"]);
    assert_contains(&open_error(one(&[u64::MAX], 4)), &["\"t\"", "larger than any memory"]);
    assert_contains(&open_error(one(&[100], 4)), &["\"t\"", "outside the file"]);
    let twice = GgufBuilder::new().tensor_f32("t", &[1], &[1.0]).tensor_f32("t", &[1], &[1.0]).build();
    assert_contains(&open_error(twice), &["\"t\"", "twice"]);
    let mut misaligned = one(&[1], 4);
    let offset_at = 24 + 8 + 1 + 4 + 8 + 4;
    misaligned[offset_at] = 4;
    assert_contains(&open_error(misaligned), &["\"t\"", "offset 4", "alignment 32"]);
}

#[test]
fn a_file_truncated_at_any_byte_is_an_error() {
    let whole = example().build();
    // Only the padding after the last tensor may be missing.
    let needed = example().header().ranges.last().map_or(whole.len(), |range| range.end);
    for length in 0..needed {
        assert!(open(whole[..length].to_vec()).is_err(), "truncated to {length} of {} bytes", whole.len());
    }
}

/// A vocabulary as the `gguf` Python package writes it.
const VOCABULARY: &[u8] = include_bytes!("../../../tests/fixtures/tokenizer/byte-level.gguf");

#[test]
fn a_vocabulary_file_truncated_at_any_byte_is_an_error() {
    assert_eq!(open(VOCABULARY.to_vec()).unwrap().strings("tokenizer.ggml.tokens").unwrap().len(), 400);
    // The file has no tensors, so only its final padding may be missing.
    let needed = VOCABULARY.len() - 32;
    for length in (0..needed).step_by(7) {
        assert!(open(VOCABULARY[..length].to_vec()).is_err(), "truncated to {length} bytes");
    }
}

fn write_shards(folder: &Path, positions: [(u16, u16); 2], n_tensors: i32) -> [PathBuf; 2] {
    let paths = [folder.join("m-00001-of-00002.gguf"), folder.join("m-00002-of-00002.gguf")];
    for (shard, (path, (index, count))) in paths.iter().zip(positions).enumerate() {
        let builder = GgufBuilder::new()
            .key("split.no", index)
            .key("split.count", count)
            .key("split.tensors.count", n_tensors)
            .tensor_f32(&format!("t{shard}"), &[2], &[shard as f32, 10.0]);
        fs::write(path, builder.build()).unwrap();
    }
    paths
}

#[test]
fn any_shard_opens_the_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    for path in write_shards(folder.path(), [(0, 2), (1, 2)], 2) {
        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(gguf.tensors().len(), 2);
        assert_eq!(gguf.weight("t0").unwrap().to_f32(), [0.0, 10.0]);
        assert_eq!(gguf.weight("t1").unwrap().to_f32(), [1.0, 10.0]);
    }
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| Gguf::open(path).err().unwrap().to_string();

    let paths = write_shards(folder.path(), [(0, 2), (1, 2)], 3);
    assert_contains(&error(&paths[0]), &["2 tensors", "says 3"]);
    let paths = write_shards(folder.path(), [(1, 2), (1, 2)], 2);
    assert_contains(&error(&paths[1]), &["m-00001-of-00002.gguf", "shard 1 of 2", "1 and 2"]);
    let paths = write_shards(folder.path(), [(0, 2), (1, 2)], 2);
    fs::remove_file(&paths[1]).unwrap();
    assert_contains(&error(&paths[0]), &["m-00002-of-00002.gguf", "cannot be read"]);
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    assert_contains(&error(&renamed), &["renamed.gguf", "one of 2 shards"]);
}

#[test]
fn unreadable_paths_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| Gguf::open(path).err().unwrap().to_string();
    assert_contains(&error(&folder.path().join("none.gguf")), &["none.gguf", "cannot be read"]);
    assert_contains(&error(folder.path()), &["directory"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = example().build();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        use_everything(bytes);
    }

    #[test]
    fn extreme_integers_anywhere_never_panic(at in any::<prop::sample::Index>(), value in prop::sample::select(vec![
        0, 1, 31, 1 << 31, u64::from(u32::MAX), 1 << 40, 1 << 62, i64::MAX as u64, u64::MAX - 31, u64::MAX,
    ])) {
        let mut bytes = example().build();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        use_everything(bytes);
    }
}

proptest! {
    #[test]
    fn a_damaged_vocabulary_file_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = VOCABULARY.to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        use_everything(bytes.clone());
        bytes.truncate(length.index(bytes.len()));
        use_everything(bytes);
    }
}

/// Reads everything in a file that opens.
fn use_everything(bytes: Vec<u8>) {
    let Ok(gguf) = open(bytes) else { return };
    for (key, value) in gguf.metadata() {
        let _ = format!("{value:?}");
        let _ = (gguf.u32(key), gguf.f32(key), gguf.integers(key), gguf.floats(key), gguf.bools(key));
        if let Ok(strings) = gguf.strings(key) {
            let n_strings = strings.len();
            assert_eq!(strings.count(), n_strings);
        }
    }
    for tensor in gguf.tensors() {
        if let Ok(weight) = gguf.weight(&tensor.name) {
            let _ = weight.to_f32();
        }
    }
}

#[test]
fn more_keys_than_any_real_file_has_are_refused() {
    // The header states a number of keys that the file is long enough for.
    let mut bytes = GgufBuilder::new().key("padding", vec![0u8; 2 << 20]).build();
    bytes[16..24].copy_from_slice(&100_000u64.to_le_bytes());
    let error = Gguf::from_bytes("many.gguf", bytes).err().unwrap().to_string();
    assert!(error.contains("states 100000 keys; at most 65536 are allowed"), "{error}");
}

/// A file with a matrix of type Q2_0, whose blocks have these sizes, and another tensor after it.
fn q2_file(block_values: usize, block_bytes: usize) -> Vec<u8> {
    let bytes = vec![0; 64 * 256 / block_values * block_bytes];
    GgufBuilder::new().tensor("w", &[256, 64], 42, bytes).tensor_f32("v", &[2], &[1.0, 2.0]).build()
}

#[test]
fn q2_blocks_of_128_values_are_refused() {
    assert_eq!(open(q2_file(64, 18)).unwrap().weight("w").unwrap().columns, 256);
    assert_contains(&open_error(q2_file(128, 34)), &["\"w\"", "older form of Q2_0"]);
    let last = GgufBuilder::new().tensor("w", &[256, 64], 42, vec![0; 128 * 34]).build();
    assert_contains(&open_error(last), &["older form of Q2_0"]);
}
