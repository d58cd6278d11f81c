//! Turns a clip into windows of its spectrogram, and says what stands for it in the prompt.

use super::family::{Family, Longest, Silence};
use super::mel::{HOP, LogMel};
use super::sizes::AudioSizes;
use super::{AudioError, AudioPreparation, PreparedAudio, Window};
use crate::media::{MediaPart, MediaSpec};
use crate::tower::merge::Merge;

/// The preparation of audio for an encoder.
#[derive(Debug)]
pub struct Preparation {
    spec: MediaSpec,
    family: &'static Family,
    mel: LogMel,
    merge: Merge,
    /// Most frames of a window.
    frames: usize,
}

impl Preparation {
    /// The preparation for an encoder of these sizes and embedding rows of `width` values.
    #[must_use]
    pub fn new(family: &'static Family, sizes: &AudioSizes, width: usize) -> Self {
        let spec = MediaSpec {
            placeholder: family.placeholder.to_owned(),
            row_tokens: family.row_tokens.iter().map(|&token| token.to_owned()).collect(),
            rows_see_each_other: false,
            width,
            max_rows: sizes.merge.rows(sizes.rows),
        };
        let mel = LogMel::new(family.spectrogram, sizes.bins);
        Preparation { spec, family, mel, merge: sizes.merge, frames: sizes.frames() }
    }

    /// The samples with the silence after them.
    fn with_silence(&self, samples: &[f32]) -> Vec<f32> {
        let length = match self.family.silence {
            Silence::None => samples.len().next_multiple_of(HOP),
            Silence::Heard | Silence::Unheard => samples.len().next_multiple_of(HOP * self.frames),
            Silence::UpTo(least) | Silence::UnheardUpTo(least) if !samples.is_empty() => samples.len().max(least),
            Silence::UpTo(_) | Silence::UnheardUpTo(_) => 0,
        };
        let mut all = samples.to_vec();
        all.resize(length, 0.0);
        all
    }

    /// The windows of a spectrogram, whose first `heard` frames are those of the clip.
    fn windows(&self, frames: &[f32], heard: usize) -> Vec<Window> {
        let of_window = self.frames * self.mel.bins();
        let window = |(index, frames): (usize, &[f32])| {
            let own = frames.len() / self.mel.bins();
            let heard = match self.family.silence {
                Silence::Heard | Silence::UpTo(_) => own,
                Silence::Unheard | Silence::UnheardUpTo(_) | Silence::None => {
                    heard.saturating_sub(index * self.frames).min(own)
                }
            };
            let is_cut = matches!(self.family.silence, Silence::UnheardUpTo(_));
            let kept = if is_cut { heard } else { own };
            let frames = frames[..kept * self.mel.bins()].to_vec();
            Window { frames, rows: self.family.front.rows(heard) }
        };
        let windows = frames.chunks(of_window).enumerate().map(window);
        windows.filter(|window| self.merge.rows(window.rows) > 0).collect()
    }
}

impl AudioPreparation for Preparation {
    fn spec(&self) -> &MediaSpec {
        &self.spec
    }

    fn most_samples(&self) -> Option<usize> {
        match self.family.longest {
            Longest::Any => None,
            Longest::Samples(most) => Some(most),
            Longest::Window => Some(self.frames * HOP),
        }
    }

    fn prepare(&self, samples: &[f32]) -> Result<PreparedAudio, AudioError> {
        if let Some(most) = self.most_samples().filter(|most| samples.len() > *most) {
            return Err(AudioError::TooLong { samples: samples.len(), most });
        }
        let frames = self.mel.spectrogram(&self.with_silence(samples));
        let windows = self.windows(&frames, samples.len().div_ceil(HOP));
        let rows: usize = windows.iter().map(|window| self.merge.rows(window.rows)).sum();
        if rows == 0 {
            return Err(AudioError::TooShort { samples: samples.len() });
        }
        let [before, after] = self.family.around.map(|text| MediaPart::Text(text.to_owned()));
        let parts = [before, MediaPart::Rows(rows), after];
        let is_empty = |part: &MediaPart| matches!(part, MediaPart::Text(text) if text.is_empty());
        Ok(PreparedAudio { parts: parts.into_iter().filter(|part| !is_empty(part)).collect(), windows })
    }
}
