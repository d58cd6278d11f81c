//! The windows of a recording for a model that hears one at a time.

use std::ops::Range;
use std::sync::Arc;

use cuelight_engine::audio::SAMPLE_RATE;
use cuelight_engine::media::MediaKind;

use super::form::TranscriptForm;
use super::marks::Marks;
use super::request::TranscriptionRequest;
use super::windows;
use crate::pipeline::runtime::ServedModel;
use crate::serving::audio_file::{AudioFile, AudioFileError};
use crate::serving::blocking::on_blocking_thread;
use crate::serving::error::ApiError;
use crate::serving::media_limits::MediaLimits;
use crate::serving::media_source::{MediaField, MediaSource};
use crate::serving::memory::RequestBudget;

/// The field with the recording.
const FILE: &str = "file";

/// A recording as a model hears it.
pub(crate) struct Recording {
    pub windows: Vec<Window>,
    pub seconds: f64,
    pub marks: Arc<Marks>,
}

/// A part of a recording.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Where it starts, and how long it is.
    pub start: f64,
    pub seconds: f64,
    /// A WAV file.
    file: Vec<u8>,
}

/// The marks and the most samples of a window, if a model hears one at a time.
pub(crate) fn window_of(model: &ServedModel) -> Option<(Arc<Marks>, usize)> {
    let TranscriptForm::Marked(marks) = TranscriptForm::of(model) else { return None };
    let audio = model.media.as_ref()?.preparation().audio?;
    Some((marks, audio.most_samples()?))
}

impl Recording {
    /// Decodes a file and divides it into windows of at most `most` samples.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field when the file is not read, and that of `memory`.
    pub async fn read(
        file: Vec<u8>,
        (marks, most): (Arc<Marks>, usize),
        limits: &MediaLimits,
        memory: &mut impl RequestBudget,
    ) -> Result<Self, ApiError> {
        if file.len() > limits.bytes(MediaKind::Audio).0 {
            return Err(limits.too_large(MediaKind::Audio, FILE));
        }
        let seconds = limits.audio_seconds;
        memory.grow(AudioFile::open(&file, seconds).map_err(unusable)?.bytes())?;
        on_blocking_thread(move || {
            let samples = AudioFile::open(&file, seconds).and_then(AudioFile::decode).map_err(unusable)?;
            let window = |range: Range<usize>| Window {
                start: seconds_of(range.start),
                seconds: seconds_of(range.len()),
                file: windows::wav(&samples[range]),
            };
            let windows = windows::of(&samples, most).into_iter().map(window).collect();
            Ok(Recording { windows, seconds: seconds_of(samples.len()), marks })
        })
        .await
    }
}

impl Window {
    /// The request for its words.
    pub fn request(self, asked: &TranscriptionRequest) -> TranscriptionRequest {
        let audio = MediaField {
            media: MediaKind::Audio,
            path: FILE.to_owned(),
            kind_path: FILE.to_owned(),
            kind: None,
            source: MediaSource::File(self.file),
        };
        TranscriptionRequest { audio: vec![audio], ..asked.clone() }
    }
}

fn seconds_of(samples: usize) -> f64 {
    samples as f64 / SAMPLE_RATE as f64
}

fn unusable(error: AudioFileError) -> ApiError {
    ApiError::invalid(FILE, format!("the audio in `{FILE}` cannot be used: {error}"))
}
