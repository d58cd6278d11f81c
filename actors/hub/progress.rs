//! Reports the progress of a download.

/// Receives the progress of a download.
pub trait Progress: Clone + Send + Sync + 'static {
    /// The download of a file of `bytes` bytes begins or is retried.
    fn start(&self, file: &str, bytes: u64);
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
