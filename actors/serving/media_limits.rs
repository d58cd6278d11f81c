//! Limits of the media of a request, and the errors that name them.

use std::sync::Arc;

use cuelight_engine::media::MediaKind;

use super::error::ApiError;
use super::media_host::MediaHost;

/// Limits of the media of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaLimits {
    /// Most images of a request.
    pub images: usize,
    /// Most bytes of the file of an image.
    pub image_bytes: usize,
    /// Most pixels of an image.
    pub image_pixels: u64,
    /// Most audio clips of a request.
    pub audio: usize,
    /// Most bytes of the file of an audio clip.
    pub audio_bytes: usize,
    /// Most seconds of an audio clip.
    pub audio_seconds: usize,
    /// The hosts from which media may be loaded.
    pub hosts: Arc<[MediaHost]>,
}

impl MediaLimits {
    /// Default of [`MediaLimits::images`].
    pub const IMAGES: usize = 16;
    /// Default of [`MediaLimits::image_bytes`].
    pub const IMAGE_BYTES: usize = 20 << 20;
    /// Default of [`MediaLimits::image_pixels`].
    pub const IMAGE_PIXELS: usize = 32 << 20;
    /// Default of [`MediaLimits::audio`].
    pub const AUDIO: usize = 16;
    /// Default of [`MediaLimits::audio_bytes`].
    pub const AUDIO_BYTES: usize = 25 << 20;
    /// Default of [`MediaLimits::audio_seconds`].
    pub const AUDIO_SECONDS: usize = 600;

    /// The most bytes of a file, and the setting that says so.
    #[must_use]
    pub fn bytes(&self, kind: MediaKind) -> (usize, &'static str) {
        match kind {
            MediaKind::Image => (self.image_bytes, "--max-image-size"),
            MediaKind::Audio => (self.audio_bytes, "--max-audio-size"),
        }
    }

    /// The most items of a request, and the setting that says so.
    #[must_use]
    pub fn count(&self, kind: MediaKind) -> (usize, &'static str) {
        match kind {
            MediaKind::Image => (self.images, "--max-images"),
            MediaKind::Audio => (self.audio, "--max-audio"),
        }
    }

    /// The error of a file with more bytes than are accepted.
    pub(super) fn too_large(&self, kind: MediaKind, path: &str) -> ApiError {
        let (most, setting) = self.bytes(kind);
        let one = kind.one();
        let message =
            format!("the {one} in `{path}` has more than the {most} bytes that this server accepts ({setting})");
        ApiError::invalid(path, message)
    }

    /// The error of more items than are accepted, of which `path` is the first too many.
    pub(super) fn too_many(&self, kind: MediaKind, count: usize, path: &str) -> ApiError {
        let ((most, setting), several) = (self.count(kind), kind.several());
        let several = if kind == MediaKind::Audio { "audio clips" } else { several };
        let message =
            format!("the request has {count} {several}, more than the {most} that this server accepts ({setting})");
        ApiError::invalid(path, message)
    }
}

impl Default for MediaLimits {
    fn default() -> Self {
        MediaLimits {
            images: Self::IMAGES,
            image_bytes: Self::IMAGE_BYTES,
            image_pixels: Self::IMAGE_PIXELS as u64,
            audio: Self::AUDIO,
            audio_bytes: Self::AUDIO_BYTES,
            audio_seconds: Self::AUDIO_SECONDS,
            hosts: Arc::default(),
        }
    }
}
