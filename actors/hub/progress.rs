//! Reports the progress of a download.

use std::future::{Future, pending};

/// Receives the progress of a download, and ends it.
pub trait Progress: Clone + Send + Sync + 'static {
    /// The download of a file of `bytes` bytes begins or is retried.
    fn start(&self, file: &str, bytes: u64);
    /// The same for a layer of a registry's model, whose data has this SHA-256 in hexadecimal.
    fn start_layer(&self, label: &str, _sha256: &str, bytes: u64) {
        self.start(label, bytes);
    }
    /// A layer of `bytes` bytes needs no download.
    fn layer_is_here(&self, _sha256: &str, _bytes: u64) {}
    /// The weights of a registry's model are compared with their SHA-256.
    fn verifying(&self) {}
    /// The manifest of a registry's model is written.
    fn writing_manifest(&self) {}
    /// Resolves when the download is to end.
    fn cancelled(&self) -> impl Future<Output = ()> + Send {
        pending()
    }
    /// `bytes` more bytes have arrived.
    fn advance(&self, bytes: u64);
    /// The file is complete.
    fn finish(&self);
    /// A message for the user.
    fn notice(&self, sentence: &str);
    /// Which of a repository's files are downloaded, and why.
    fn choice(&self, sentence: &str) {
        self.notice(sentence);
    }
}

impl Progress for () {
    fn start(&self, _file: &str, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
    fn notice(&self, _sentence: &str) {}
}
