//! The metrics of media: images and audio.

use std::time::Duration;

use cuelight_engine::media::MediaKind;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::{
    AUDIO_CACHE_HITS, AUDIO_ENCODE_TIME, AUDIO_WINDOWS_ENCODED, IMAGE_CACHE_HITS, IMAGE_ENCODE_TIME, IMAGES_ENCODED,
    MEDIA_CACHE_BYTES, MEDIA_WAITING, TRANSCRIPTION_FALLBACKS,
};

/// The metrics of the media of one model.
pub struct MediaMetrics {
    images: OfKind,
    audio: OfKind,
    transcription_fallbacks: Counter,
    waiting: Gauge,
    cache_bytes: Gauge,
}

/// The metrics of media of one kind.
struct OfKind {
    encoded: Counter,
    cache_hits: Counter,
    encode_time: Histogram,
}

/// Counts a media item that waits or is being computed, until dropped.
pub(crate) struct WaitingMedia(Gauge);

impl MediaMetrics {
    pub(crate) fn new(model_id: &str) -> Self {
        let labels = || [("model", model_id.to_owned())];
        let of_kind = |encoded, cache_hits, encode_time| OfKind {
            encoded: counter!(encoded, &labels()),
            cache_hits: counter!(cache_hits, &labels()),
            encode_time: histogram!(encode_time, &labels()),
        };
        MediaMetrics {
            images: of_kind(IMAGES_ENCODED, IMAGE_CACHE_HITS, IMAGE_ENCODE_TIME),
            audio: of_kind(AUDIO_WINDOWS_ENCODED, AUDIO_CACHE_HITS, AUDIO_ENCODE_TIME),
            transcription_fallbacks: counter!(TRANSCRIPTION_FALLBACKS, &labels()),
            waiting: gauge!(MEDIA_WAITING, &labels()),
            cache_bytes: gauge!(MEDIA_CACHE_BYTES, &labels()),
        }
    }

    fn of(&self, kind: MediaKind) -> &OfKind {
        match kind {
            MediaKind::Image => &self.images,
            MediaKind::Audio => &self.audio,
        }
    }

    pub(crate) fn waits(&self) -> WaitingMedia {
        self.waiting.increment(1.0);
        WaitingMedia(self.waiting.clone())
    }

    pub(crate) fn encoded(&self, kind: MediaKind, elapsed: Duration) {
        let OfKind { encoded, encode_time, .. } = self.of(kind);
        encoded.increment(1);
        encode_time.record(elapsed);
    }

    pub(crate) fn found(&self, kind: MediaKind) {
        self.of(kind).cache_hits.increment(1);
    }

    /// A window of a recording is decoded again.
    pub(crate) fn transcription_fallback(&self) {
        self.transcription_fallbacks.increment(1);
    }

    pub(crate) fn cache_holds(&self, bytes: usize) {
        self.cache_bytes.set(bytes as f64);
    }
}

impl Drop for WaitingMedia {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
