//! The metrics of images.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::{IMAGE_CACHE_BYTES, IMAGE_CACHE_HITS, IMAGE_ENCODE_TIME, IMAGES_ENCODED, IMAGES_WAITING};

/// The metrics of the images of one model.
pub struct ImageMetrics {
    encoded: Counter,
    cache_hits: Counter,
    encode_time: Histogram,
    waiting: Gauge,
    cache_bytes: Gauge,
}

/// Counts an image that waits or is being computed, until dropped.
pub(crate) struct WaitingImage(Gauge);

impl ImageMetrics {
    pub(crate) fn new(model_id: &str) -> Self {
        let labels = || [("model", model_id.to_owned())];
        ImageMetrics {
            encoded: counter!(IMAGES_ENCODED, &labels()),
            cache_hits: counter!(IMAGE_CACHE_HITS, &labels()),
            encode_time: histogram!(IMAGE_ENCODE_TIME, &labels()),
            waiting: gauge!(IMAGES_WAITING, &labels()),
            cache_bytes: gauge!(IMAGE_CACHE_BYTES, &labels()),
        }
    }

    pub(crate) fn waits(&self) -> WaitingImage {
        self.waiting.increment(1.0);
        WaitingImage(self.waiting.clone())
    }

    pub(crate) fn encoded(&self, elapsed: Duration) {
        self.encoded.increment(1);
        self.encode_time.record(elapsed);
    }

    pub(crate) fn found(&self) {
        self.cache_hits.increment(1);
    }

    pub(crate) fn cache_holds(&self, bytes: usize) {
        self.cache_bytes.set(bytes as f64);
    }
}

impl Drop for WaitingImage {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
