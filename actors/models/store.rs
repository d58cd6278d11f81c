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

    /// Downloads a model and puts its files into the directory. What is complete already is not downloaded again.
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
    /// The name is no reference to a model of the hub.
    #[error(
        "`{0}` is not a model that can be downloaded; write org/repo, org/repo:quant, org/repo:safetensors or org/repo/file.gguf"
    )]
    NotAReference(String),
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
    /// The hub or the disk failed.
    #[error("{0}")]
    Failed(String),
}

/// How far a download is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullState {
    /// The file that is being downloaded. Empty before the first one.
    pub file: String,
    /// Its size.
    pub total_bytes: u64,
    /// How much of it is there.
    pub completed_bytes: u64,
    /// How the download ended.
    pub result: Option<Result<(), StoreError>>,
}

/// Reports how far a download is.
#[derive(Debug, Clone)]
pub struct PullProgress(watch::Sender<PullState>);

impl PullProgress {
    /// Before the first file, with what observes it.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<PullState>) {
        let (sender, receiver) = watch::channel(PullState::default());
        (PullProgress(sender), receiver)
    }

    /// The download of a file begins or is tried again.
    pub fn start(&self, file: &str, total_bytes: u64) {
        self.0.send_replace(PullState { file: file.to_owned(), total_bytes, ..PullState::default() });
    }

    /// `bytes` more have arrived.
    pub fn advance(&self, bytes: u64) {
        self.0.send_modify(|state| state.completed_bytes = (state.completed_bytes + bytes).min(state.total_bytes));
    }

    /// The download has ended.
    pub(super) fn end(&self, result: Result<(), StoreError>) {
        self.0.send_modify(|state| state.result = Some(result));
    }
}
