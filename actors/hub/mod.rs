//! Where models come from: a path, the shared Hugging Face cache, the hub, or the built-in demo.
//!
//! [`Hub::locate`] turns what a person wrote after `cuelight run` into a file on disk. Everything here blocks: commands
//! call it before any actor lives, and each download attempt runs on a small runtime of its own, so that giving up an
//! attempt also stops whatever it had in flight.

pub mod cache;
mod demo;
mod download;
pub mod reference;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::Config;
use cache::Cache;
use reference::ModelReference;

/// The last resort against a hub that accepts connections but never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What messages call the hub when the configuration names none; its address is the library's business.
const PUBLIC_HUB: &str = "the hub";

/// Why a model is not here.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a file nor a reference.
    #[error(
        "{0:?} is neither a file nor a model reference; write the path of a .gguf file, org/repo, org/repo:quant, \
         org/repo/file.gguf, or demo"
    )]
    NotAReference(String),
    /// A path that leads nowhere.
    #[error("no such file: {}", .0.display())]
    NoSuchFile(PathBuf),
    /// A path to something that is not a file.
    #[error("{} is a directory, not a .gguf file", .0.display())]
    IsDirectory(PathBuf),
    /// Not in the cache, and looking further is forbidden.
    #[error(
        "{reference} is not in the cache, and offline use is on; run `cuelight pull {reference}` without --offline"
    )]
    Offline {
        /// What was asked for.
        reference: String,
    },
    /// The hub does not know the repository, or hides it.
    #[error(
        "{hub} has no repository {repo}, or it is private or gated: check the name, accept its terms on the hub, and set \
         HF_TOKEN"
    )]
    NoSuchRepository {
        /// Who was asked.
        hub: String,
        /// What for.
        repo: String,
    },
    /// The token is wrong, or the terms were not accepted.
    #[error("{hub} refuses access to {repo}: accept its terms on the hub and set HF_TOKEN to a token that may read it")]
    Forbidden {
        /// Who was asked.
        hub: String,
        /// What for.
        repo: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no GGUF {wanted}; it has: {}", listed(available))]
    NoSuchQuant {
        /// The repository.
        repo: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        available: Vec<String>,
    },
    /// Shards are missing.
    #[error("{repo} has only {found} of the {expected} shards of {file}")]
    MissingShards {
        /// The repository.
        repo: String,
        /// The first shard.
        file: String,
        /// Shards there are.
        found: usize,
        /// Shards there should be.
        expected: usize,
    },
    /// The hub did not answer in time.
    #[error("{hub} did not answer within {seconds} s; check the network, or use a model on this machine")]
    Timeout {
        /// Who was asked.
        hub: String,
        /// How long.
        seconds: u64,
    },
    /// The hub cannot be reached, or answers with nonsense.
    #[error("cannot get {what} from {hub}")]
    Request {
        /// Who was asked.
        hub: String,
        /// What for.
        what: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What arrived is not what the hub promised.
    #[error("{file} arrived damaged (sha256 {found}, expected {expected}) and was removed; run the command again")]
    Checksum {
        /// The file.
        file: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Nothing in the cache goes by that name.
    #[error("{0} is not in the cache; `cuelight list` shows what is")]
    NotCached(String),
    /// Every source of the demo failed.
    #[error("the demo model could not be had; tried: {}", .0.join("; "))]
    Demo(Vec<String>),
    /// The disk.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// "read", "write" …
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl HubError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| HubError::Io { what, path: path.to_owned(), source }
    }
}

fn listed(available: &[String]) -> String {
    if available.is_empty() { "no GGUF files at all".to_owned() } else { available.join(", ") }
}

/// Hears how a download goes.
pub trait Progress: Clone + Send + Sync + 'static {
    /// A file of so many bytes begins, or begins again.
    fn start(&self, file: &str, bytes: u64);
    /// So many bytes more are here.
    fn advance(&self, bytes: u64);
    /// The file is complete.
    fn finish(&self);
    /// A sentence for the person.
    fn notice(&self, sentence: &str);
}

impl Progress for () {
    fn start(&self, _file: &str, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
    fn notice(&self, _sentence: &str) {}
}

/// The sources of models, as configured.
#[derive(Debug, Clone)]
pub struct Hub {
    cache: Cache,
    endpoint: Option<String>,
    token: Option<String>,
    offline: bool,
    demo_dir: PathBuf,
    answer_timeout: Duration,
}

impl Hub {
    /// As the configuration says.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let token = config.hf_token.as_ref().map(|token| token.0.clone());
        Hub {
            cache: Cache::new(config.hf_home.join("hub")),
            endpoint: config.hf_endpoint.clone(),
            token: token.or_else(|| stored_token(&config.hf_home)),
            offline: config.offline,
            demo_dir: config.cache_dir.join("demo"),
            answer_timeout: ANSWER_TIMEOUT,
        }
    }

    /// The cache that other programs share.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// A model's file (the first of its shards): a path as it is, anything else from the cache, or downloaded.
    ///
    /// # Errors
    /// [`HubError`] when it is not to be had.
    pub fn locate(&self, model: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        match ModelReference::parse(model)? {
            ModelReference::Path(path) => Ok(path),
            ModelReference::Demo => demo::locate(self, progress),
            ModelReference::Repository(wanted) => match self.cache.find(&wanted) {
                Some(found) => Ok(found.first_path().to_owned()),
                None => self.download(&wanted, progress),
            },
        }
    }

    /// Downloads a model even if some version of it is in the cache, and returns its file.
    ///
    /// # Errors
    /// [`HubError`] when it is not to be had.
    pub fn pull(&self, model: &str, progress: &impl Progress) -> Result<PathBuf, HubError> {
        match ModelReference::parse(model)? {
            ModelReference::Repository(wanted) if !self.offline => self.download(&wanted, progress),
            _ => self.locate(model, progress),
        }
    }

    fn hub_name(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| PUBLIC_HUB.to_owned())
    }
}

/// The token that the hub's own command line has stored.
fn stored_token(hf_home: &Path) -> Option<String> {
    let token = std::fs::read_to_string(hf_home.join("token")).ok()?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
