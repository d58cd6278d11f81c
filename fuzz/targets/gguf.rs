//! A GGUF file, up to the plan of its memory. The weights are never read.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cuelight_engine::format::gguf::{Gguf, Metadata, Value};
use cuelight_engine::load::{self, LoadOptions};

/// Zeros after the input: the tensors of the small models of the corpus, which need not be in it.
const TENSOR_BYTES: u64 = 2 << 20;

/// The input is a file without the bytes of its tensors.
pub fn run(data: &[u8]) {
    let path = path();
    check_file(path, data);
    // A file that stays after a panic is replaced by the next process with this id.
    let _ = std::fs::remove_file(path);
}

fn check_file(path: &Path, data: &[u8]) {
    let file_bytes = data.len() as u64 + TENSOR_BYTES;
    File::create(path)
        .and_then(|mut file| file.write_all(data).and_then(|()| file.set_len(file_bytes)))
        .expect("the folder for temporary files can be written");
    match Gguf::open(path) {
        Ok(gguf) => check(&gguf, file_bytes),
        Err(error) => return assert!(error.to_string().len() < 100_000),
    }
    let options = LoadOptions { threads: 1, memory_bytes: Some(4 << 30), ..LoadOptions::new(path) };
    if let Ok(plan) = load::plan(&options) {
        assert!(plan.memory().host_bytes() <= 4 << 30, "the plan is larger than its limit");
        assert!(plan.limits().context_tokens > 0 && plan.limits().kv_blocks > 0);
    }
}

/// Reads everything that the header describes.
fn check(gguf: &Gguf, file_bytes: u64) {
    for (key, value) in gguf.metadata() {
        assert!(gguf.value(key).is_some());
        if let Value::Array(_) = value {
            let _ = (gguf.integers(key), gguf.floats(key), gguf.bools(key));
            if let Ok(strings) = gguf.strings(key) {
                assert!(strings.map(|text| text.len() as u64).sum::<u64>() <= file_bytes);
            }
        }
    }
    for tensor in gguf.tensors() {
        assert!(tensor.start + tensor.bytes() <= file_bytes, "{tensor:?} ends outside the file");
        if let Ok(weight) = gguf.weight(&tensor.name) {
            assert_eq!((weight.rows as u64, weight.columns as u64), (tensor.n_rows(), tensor.n_columns()));
        }
    }
}

/// A file of this process.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        folder.join(format!("cuelight-fuzz-{}.gguf", std::process::id()))
    })
}
