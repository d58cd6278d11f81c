//! A Hugging Face directory: its configuration, the header of its weights and their index, up to the plan of its memory.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

use cuelight_engine::checkpoint::{self, Checkpoint};
use cuelight_engine::load::{self, LoadOptions};

use super::text_parts;

/// Zeros after a header: the tensors of the small models of the corpus.
const TENSOR_BYTES: u64 = 1 << 20;

/// The input is `config.json`, the header of a safetensors file, an index, and `tokenizer_config.json`, with zero bytes between
/// them; or, after a zero byte, a whole safetensors file.
pub fn run(data: &[u8]) {
    let folder = folder();
    write(&folder, data).expect("the folder for temporary files can be written");
    check(&folder);
    // A folder that stays after a panic is replaced by the next process with this id.
    let _ = fs::remove_dir_all(&folder);
}

fn write(folder: &Path, data: &[u8]) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder)?;
    if let Some((0, file)) = data.split_first() {
        fs::write(folder.join("config.json"), include_str!("../corpus/hugging_face/config"))?;
        return fs::write(folder.join("model.safetensors"), file);
    }
    let [config, header, index, tokenizer] = text_parts(data);
    fs::write(folder.join("config.json"), config)?;
    for (name, text) in [("model.safetensors.index.json", index), ("tokenizer_config.json", tokenizer)] {
        if !text.is_empty() {
            fs::write(folder.join(name), text)?;
        }
    }
    let mut file = File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.set_len(8 + header.len() as u64 + TENSOR_BYTES)
}

fn check(folder: &Path) {
    let checkpoint = match checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(error.to_string().len() < 100_000),
    };
    check_tensors(&*checkpoint);
    let options = LoadOptions { threads: 1, memory_bytes: Some(4 << 30), ..LoadOptions::new(folder) };
    if let Ok(plan) = load::plan(&options) {
        assert!(plan.memory().host_bytes() <= 4 << 30, "the plan is larger than its limit");
    }
}

/// Reads every tensor. A tensor is at most twice as large as what it is made of.
fn check_tensors(checkpoint: &dyn Checkpoint) {
    for tensor in checkpoint.tensors() {
        let weight = checkpoint.weight(&tensor.name).expect("a tensor of the table can be read");
        assert_eq!((weight.rows as u64, weight.columns as u64), (tensor.n_rows(), tensor.n_columns()));
        assert_eq!(weight.bytes().len() as u64, tensor.bytes(), "{tensor:?}");
    }
}

/// A folder of this process.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    parent.join(format!("cuelight-fuzz-{}-{:?}", std::process::id(), std::thread::current().id()))
}
