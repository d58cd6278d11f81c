//! The files of a directory without its weights: tokenizer, chat template, how to sample.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The config, which is written with one more key.
pub(super) const CONFIG: &str = "config.json";

/// The parts of a model that makes embeddings, each in a folder.
const MODULES: &str = "modules.json";

/// The ends of the names of files with weights.
const WEIGHTS: &[&str] = &[
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
    ".onnx_data",
    ".h5",
    ".msgpack",
    ".tflite",
    ".ot",
];

/// Copies all files without weights, and the folders of further parts of the model as a whole. Other folders are left out.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for name in names(from)? {
        let is_weights = WEIGHTS.iter().any(|end| name.ends_with(end));
        if !is_weights && !name.starts_with('.') && name != CONFIG && from.join(&name).is_file() {
            copy_file(&from.join(&name), &to.join(&name))?;
        }
    }
    for part in parts(from) {
        fs::create_dir_all(to.join(&part))?;
        for name in names(&from.join(&part))?.iter().filter(|name| from.join(&part).join(name).is_file()) {
            copy_file(&from.join(&part).join(name), &to.join(&part).join(name))?;
        }
    }
    Ok(())
}

/// The folders of further parts of a model, each a name.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let modules = fs::read(folder.join(MODULES)).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let paths = modules.iter().filter_map(Value::as_array).flatten().filter_map(|module| module.get("path")?.as_str());
    let is_name = |path: &&str| !path.is_empty() && !path.starts_with('.') && !path.contains(['/', '\\', ':']);
    paths.filter(is_name).map(PathBuf::from).filter(|path| folder.join(path).is_dir()).collect()
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = File::create(to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()
}
