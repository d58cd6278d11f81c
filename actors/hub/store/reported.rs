//! Passes on the progress of a download.

use std::future::Future;

use crate::hub::progress::Progress;
use crate::models::{PullProgress, PullStep};

/// Passes on the progress of a download to those who wait for it, and ends it when there are none.
#[derive(Clone)]
pub(super) struct Reported(pub PullProgress);

impl Reported {
    fn layer(&self, sha256: &str, bytes: u64) {
        self.0.begin(PullStep::file(&sha256[..12.min(sha256.len())], Some(sha256), bytes));
    }
}

impl Progress for Reported {
    fn start(&self, file: &str, bytes: u64) {
        self.0.begin(PullStep::file(file, None, bytes));
    }

    fn start_layer(&self, _label: &str, sha256: &str, bytes: u64) {
        self.layer(sha256, bytes);
    }

    fn layer_is_here(&self, sha256: &str, bytes: u64) {
        self.layer(sha256, bytes);
        self.0.advance(bytes);
    }

    fn verifying(&self) {
        self.0.begin(PullStep::Verifying);
    }

    fn writing_manifest(&self) {
        self.0.begin(PullStep::WritingManifest);
    }

    fn cancelled(&self) -> impl Future<Output = ()> + Send {
        self.0.abandoned()
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn finish(&self) {}

    fn notice(&self, sentence: &str) {
        tracing::warn!("{sentence}");
    }

    fn choice(&self, sentence: &str) {
        tracing::info!("{sentence}");
    }
}
