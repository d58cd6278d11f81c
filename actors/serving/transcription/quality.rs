//! How usable the text of a window is: when it is decoded again at a higher temperature, and when it is dropped as silence.
//!
//! Source: `transcribe.py` of Whisper's own program (github.com/openai/whisper), from which the thresholds are.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The temperatures at which a window is decoded, one after the other until a text is usable.
pub(crate) const TEMPERATURES: [f32; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

/// A text that is compressed more repeats itself (`compression_ratio_threshold`).
const HIGHEST_COMPRESSION_RATIO: f64 = 2.4;
/// A text with a lower mean log-probability is a guess, in nats (`logprob_threshold`).
const LOWEST_LOGPROB: f64 = -1.0;
/// A window is silent if that is more probable and its text is a guess (`no_speech_threshold`).
const HIGHEST_NO_SPEECH: f64 = 0.6;

/// The figures by which the text of a window is judged.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Quality {
    /// The temperature at which it was decoded.
    pub temperature: f32,
    /// The mean log-probability of the tokens of words, in nats; 0 without words.
    pub logprob: f64,
    /// Bytes of the text (UTF-8) divided by those of its zlib stream; 0 of no text.
    pub compression_ratio: f64,
    /// The probability that nothing is said. `None` if the vocabulary has no token for it.
    pub no_speech: Option<f64>,
}

impl Quality {
    /// Whether the window is to be decoded at the next temperature.
    pub fn needs_fallback(&self) -> bool {
        let repeats = self.compression_ratio > HIGHEST_COMPRESSION_RATIO;
        (repeats || self.is_guess()) && !self.is_silence()
    }

    /// Whether nothing is said, so that the text is to be dropped.
    pub fn is_silence(&self) -> bool {
        self.is_guess() && self.no_speech.is_some_and(|probability| probability > HIGHEST_NO_SPEECH)
    }

    fn is_guess(&self) -> bool {
        self.logprob < LOWEST_LOGPROB
    }
}

/// The bytes of a text (UTF-8) divided by those of its zlib stream.
pub(super) fn compression_ratio(text: &str) -> f64 {
    let compressed = || -> io::Result<usize> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes())?;
        Ok(encoder.finish()?.len())
    };
    // Writing to memory does not fail.
    text.len() as f64 / compressed().unwrap_or(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Quality = Quality { temperature: 0.0, logprob: -0.3, compression_ratio: 1.4, no_speech: Some(0.01) };

    #[test]
    fn a_text_that_repeats_itself_or_is_a_guess_needs_a_fallback() {
        assert!(!GOOD.needs_fallback() && !GOOD.is_silence());
        assert!(Quality { compression_ratio: 2.5, ..GOOD }.needs_fallback());
        assert!(Quality { logprob: -1.1, ..GOOD }.needs_fallback());
        assert!(Quality { logprob: -1.1, no_speech: None, ..GOOD }.needs_fallback());
    }

    #[test]
    fn a_guess_at_a_silent_window_is_dropped() {
        let silent = Quality { logprob: -1.1, no_speech: Some(0.7), ..GOOD };
        assert!(silent.is_silence() && !silent.needs_fallback());
        assert!(!Quality { logprob: -0.9, ..silent }.is_silence(), "the model is sure of the text");
    }

    #[test]
    fn a_text_that_repeats_itself_has_a_high_ratio() {
        // With Python's zlib: 84 / 70 and 330 / 24 bytes.
        let speech = "the quiet before the storm, and the fishermen tied their boats to the old stone pier";
        let (once, repeated) = (compression_ratio(speech), compression_ratio(&"Thank you. ".repeat(30)));
        assert!((once - 1.2).abs() < 0.05 && (repeated - 13.75).abs() < 1.0, "{once}, {repeated}");
        assert_eq!(compression_ratio(""), 0.0);
    }
}
