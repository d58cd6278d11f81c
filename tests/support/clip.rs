//! The clips that the oracle of audio hears: `clip` of `tests/generate/clips.py`.
#![allow(dead_code)]

/// A clip in 16 bits.
pub fn clip(samples: usize) -> Vec<i16> {
    let sample = |index: i64| ((index * index * 7 + index * 13) % 2001 - 1000) * (1 + index / 700 % 4) * 8;
    (0..samples as i64).map(|index| sample(index) as i16).collect()
}

/// A clip as encoders take it.
pub fn float_clip(samples: usize) -> Vec<f32> {
    clip(samples).into_iter().map(|sample| f32::from(sample) / 32_768.0).collect()
}
