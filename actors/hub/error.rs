//! Why a model file is not available.

use std::path::{Path, PathBuf};

/// Why a model file is not available.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text is neither a file nor a model reference.
    #[error(
        "{0:?} is neither a file nor a model reference; write the path of a .gguf file, org/repo, org/repo:quant, \
         org/repo:safetensors, org/repo/file.gguf, ollama://name:tag, or demo"
    )]
    NotAReference(String),
    /// The text after `ollama://` is no name.
    #[error(
        "{0:?} is no name of a model; write ollama://name:tag, ollama://namespace/name:tag or ollama://host/namespace/name:tag"
    )]
    NotAnOllamaName(String),
    /// No registry is configured, and the name has none.
    #[error(
        "no registry for {0} is configured: set CUELIGHT_OLLAMA_REGISTRY to its address, or write ollama://host/namespace/name:tag"
    )]
    NoRegistry(String),
    /// The registry has no such model or tag, or it is private.
    #[error("{registry} has no {model}, or it is private: check the name and the tag")]
    NoSuchModel {
        /// The address of the registry.
        registry: String,
        /// The name of the model.
        model: String,
    },
    /// The manifest of a model, or a text that it names, is damaged.
    #[error("the registry's manifest of {model} is damaged: {reason}")]
    BadManifest {
        /// The name of the model.
        model: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The model is in a form that does not run.
    #[error("{model} {reason}, which Cuelight does not run; name a tag with one GGUF file")]
    Unusable {
        /// The name of the model.
        model: String,
        /// What it has.
        reason: &'static str,
    },
    /// The path does not exist.
    #[error("no such file: {}", .0.display())]
    NoSuchFile(PathBuf),
    /// The path is a directory.
    #[error("{} is a directory without a config.json, not a model", .0.display())]
    IsDirectory(PathBuf),
    /// The model is not in the cache, and offline mode forbids downloads.
    #[error("{reference} is not in the cache, and offline use is on; run `cuelight pull {reference} --offline=false`")]
    Offline {
        /// The model reference.
        reference: String,
    },
    /// The hub has no such repository, or it is private or gated.
    #[error(
        "{hub} has no repository {repo}, or it is private or gated: check the name, accept its terms on the hub, and set \
         HF_TOKEN"
    )]
    NoSuchRepository {
        /// The name or address of the hub.
        hub: String,
        /// The repository.
        repo: String,
    },
    /// The token is wrong, or the terms of the repository were not accepted.
    #[error("{hub} refuses access to {repo}: accept its terms on the hub and set HF_TOKEN to a token that may read it")]
    Forbidden {
        /// The name or address of the hub.
        hub: String,
        /// The repository.
        repo: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no GGUF {wanted}; it has: {}", listed(available))]
    NoSuchQuant {
        /// The repository.
        repo: String,
        /// The requested quantization or file.
        wanted: String,
        /// The available quantizations and files.
        available: Vec<String>,
    },
    /// The repository has weights that are Python pickles, and no others.
    #[error(
        "{repo} has its weights only as Python pickles ({file}), which can run code and are never read; name a repository \
         with GGUF or safetensors files of the model"
    )]
    PickleOnly {
        /// The repository.
        repo: String,
        /// A file of these weights.
        file: String,
    },
    /// A file without which safetensors do not load is missing.
    #[error(
        "{repo} has no {file}, without which its safetensors do not load; name a repository with GGUF files instead"
    )]
    MissingFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// The index of the shards is damaged.
    #[error("{} is no index of shards: {reason}", path.display())]
    BadIndex {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The repository changed between two files of a model.
    #[error("{0} changed while it was downloaded; run the command again")]
    Updated(String),
    /// The reference and the asked format exclude each other.
    #[error("{reference} is not in the format {format}; name only the repository, or leave out the format")]
    OtherFormat {
        /// The reference.
        reference: String,
        /// The format.
        format: String,
    },
    /// Some shards of the model are missing.
    #[error("{repo} has only {found} of the {expected} shards of {file}")]
    MissingShards {
        /// The repository.
        repo: String,
        /// The first shard.
        file: String,
        /// Number of shards found.
        found: usize,
        /// Number of shards of the model.
        expected: usize,
    },
    /// The hub did not answer in time.
    #[error("{hub} did not answer within {seconds} s; check the network, or use a model on this machine")]
    Timeout {
        /// The name or address of the hub.
        hub: String,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// The hub cannot be reached, or its response is invalid.
    #[error("cannot get {what} from {hub}")]
    Request {
        /// The name or address of the hub.
        hub: String,
        /// What was requested.
        what: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Who asked for the download wants it no more.
    #[error("the download was cancelled")]
    Cancelled,
    /// The checksum of a downloaded file does not match.
    #[error("{file} arrived damaged (sha256 {found}, expected {expected}) and was removed; run the command again")]
    Checksum {
        /// The file.
        file: String,
        /// The expected checksum.
        expected: String,
        /// The checksum of the file.
        found: String,
    },
    /// The cache contains no such model.
    #[error("{0} is not in the cache; `cuelight list` shows what is")]
    NotCached(String),
    /// Every source of the demo model failed.
    #[error("the demo model could not be downloaded; tried: {}", .0.join("; "))]
    Demo(Vec<String>),
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation: "read", "write" …
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl HubError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| HubError::Io { what, path: path.to_owned(), source }
    }
}

fn listed(available: &[String]) -> String {
    if available.is_empty() { "no GGUF files at all".to_owned() } else { available.join(", ") }
}
