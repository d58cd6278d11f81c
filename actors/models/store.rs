//! The seam to where models come from: downloads into the models directory, and removal from it.

use std::path::Path;

use tokio::sync::watch;

/// Downloads models into the models directory and removes them again. All functions block.
pub trait ModelStore: Send + Sync + 'static {
    /// The reference that `name` means, without what other servers write around one.
    ///
    /// # Errors
    /// [`StoreError::NotAReference`].
    fn reference(&self, name: &str) -> Result<String, StoreError>;

    /// Downloads a model and puts its files into the directory. What is complete already is not downloaded again. Ends with
    /// [`StoreError::Cancelled`] when no client wants it any more ([`PullProgress::abandoned`]).
    ///
    /// # Errors
    /// [`StoreError`] when the model is not available or its files cannot be put there.
    fn download(&self, reference: &str, progress: PullProgress) -> Result<(), StoreError>;

    /// The references of the model whose file, or first shard, in the directory is `path`. Empty for a file that this store
    /// did not put there.
    fn references(&self, path: &Path) -> Vec<String>;

    /// Removes such a model from the directory and from the disk.
    ///
    /// # Errors
    /// [`StoreError`] when this store did not put it there, or a file cannot be removed.
    fn remove(&self, path: &Path) -> Result<(), StoreError>;
}

/// Why a model was not downloaded or deleted. `Display` is the message that the client reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The server changes no models on disk.
    #[error(
        "this server does not download or delete models: start it with --models-dir and --allow-pull, or run \
         `cuelight pull` or `cuelight rm` on its machine"
    )]
    Off,
    /// The name is no reference to a model of the hub or the registry.
    #[error(
        "`{0}` is not a model that can be downloaded; write org/repo, org/repo:quant, org/repo:safetensors or \
         org/repo/file.gguf, or name:tag if the server has a registry for such names"
    )]
    NotAReference(String),
    /// The name is one of a registry that is not this server's.
    #[error("this server downloads `{0}` only from its own registry; leave out the host")]
    OtherRegistry(String),
    /// The hub has no such model, or does not give it to this server.
    #[error("{0}")]
    NotFound(String),
    /// The model is in use, or something else is being done with it.
    #[error("{0}")]
    Conflict(String),
    /// The model may not be deleted by requests.
    #[error("{0}")]
    NotAllowed(String),
    /// Too many downloads run.
    #[error("{0} downloads run already; try again when one has ended")]
    Busy(usize),
    /// No client waited for the download any more.
    #[error("the download was cancelled, because its clients are gone")]
    Cancelled,
    /// The hub or the disk failed.
    #[error("{0}")]
    Failed(String),
}

/// How far a download is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullState {
    /// What it has done and does, the last one now.
    pub steps: Vec<PullStep>,
    /// How the download ended.
    pub result: Option<Result<(), StoreError>>,
}

/// A step of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullStep {
    /// Data is received.
    File {
        /// The file, or the short name of a layer.
        name: String,
        /// The SHA-256 that it must have, in hexadecimal, if it is known before.
        sha256: Option<String>,
        /// Its size.
        total_bytes: u64,
        /// How much of it is there.
        completed_bytes: u64,
    },
    /// What arrived is checked.
    Verifying,
    /// The model is entered into the list of models.
    WritingManifest,
}

impl PullStep {
    /// A file of which nothing is there yet.
    #[must_use]
    pub fn file(name: &str, sha256: Option<&str>, total_bytes: u64) -> Self {
        PullStep::File { name: name.to_owned(), sha256: sha256.map(str::to_owned), total_bytes, completed_bytes: 0 }
    }
}

/// Reports how far a download is, and whether a client still wants it.
#[derive(Debug, Clone)]
pub struct PullProgress(watch::Sender<PullState>);

impl PullProgress {
    /// Before the first step, with what observes it.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<PullState>) {
        let (sender, receiver) = watch::channel(PullState::default());
        (PullProgress(sender), receiver)
    }

    /// A step begins. A file that is tried again begins again.
    pub fn begin(&self, step: PullStep) {
        let name = |step: &PullStep| match step {
            PullStep::File { name, .. } => Some(name.clone()),
            _ => None,
        };
        self.0.send_modify(|state| {
            if state.steps.last().is_some_and(|last| name(last).is_some() && name(last) == name(&step)) {
                state.steps.pop();
            }
            state.steps.push(step);
        });
    }

    /// `bytes` more of the file have arrived.
    pub fn advance(&self, bytes: u64) {
        self.0.send_modify(|state| {
            if let Some(PullStep::File { completed_bytes, total_bytes, .. }) = state.steps.last_mut() {
                *completed_bytes = (*completed_bytes + bytes).min(*total_bytes);
            }
        });
    }

    /// Waits until no client wants the download any more.
    pub async fn abandoned(&self) {
        self.0.closed().await;
    }

    /// Another observer, if a client still wants the download.
    pub(super) fn join(&self) -> Option<watch::Receiver<PullState>> {
        (!self.0.is_closed()).then(|| self.0.subscribe())
    }

    /// The download has ended.
    pub(super) fn end(&self, result: Result<(), StoreError>) {
        self.0.send_modify(|state| state.result = Some(result));
    }
}
