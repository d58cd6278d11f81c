//! What the user chose for 8-bit weights and activations.

use std::str::FromStr;

use super::error::W8a8Error;

/// Most bytes of weights in a file, as most publishers choose.
const MOST_FILE_BYTES: usize = 5_000_000_000;

/// What the user chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct W8a8Options {
    /// The largest value of an output that its codes represent.
    pub clip: Clip,
    /// How far factors move from activations to weights; `None` to leave both as they are.
    pub smoothing: Option<Strength>,
    /// Threads that quantize.
    pub threads: usize,
    /// Most bytes of weights in a file.
    pub most_file_bytes: usize,
}

impl Default for W8a8Options {
    fn default() -> Self {
        W8a8Options { clip: Clip::Max, smoothing: None, threads: 1, most_file_bytes: MOST_FILE_BYTES }
    }
}

/// The largest magnitude that the codes of an output represent. Larger values become this one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Clip {
    /// The largest magnitude of its weights.
    #[default]
    Max,
    /// The magnitude that this many of a hundred weights do not exceed.
    Percentile(f64),
}

impl FromStr for Clip {
    type Err = W8a8Error;

    /// Parses `max`, or `percentile:99.9` with a number above 50 and up to 100.
    fn from_str(text: &str) -> Result<Self, W8a8Error> {
        let not_a_clip = || W8a8Error::NotAClip { text: text.to_owned() };
        if text == "max" {
            return Ok(Clip::Max);
        }
        let percent = text.strip_prefix("percentile:").and_then(|number| number.parse::<f64>().ok());
        percent.filter(|percent| *percent > 50.0 && *percent <= 100.0).map(Clip::Percentile).ok_or_else(not_a_clip)
    }
}

/// How far factors move from activations to weights: 0 moves nothing that depends on activations, 1 makes all columns of
/// activations equally large.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Strength(f32);

impl Strength {
    /// The exponent of the largest activation.
    #[must_use]
    pub fn value(self) -> f32 {
        self.0
    }
}

impl FromStr for Strength {
    type Err = W8a8Error;

    /// Parses a number from 0 to 1.
    fn from_str(text: &str) -> Result<Self, W8a8Error> {
        let number = text.parse::<f32>().ok().filter(|number| (0.0..=1.0).contains(number));
        number.map(Strength).ok_or_else(|| W8a8Error::NotAStrength { text: text.to_owned() })
    }
}
