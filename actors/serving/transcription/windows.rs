//! Divides a recording into windows that a model hears one by one, where it is quiet.

use std::ops::Range;

use cuelight_engine::audio::SAMPLE_RATE;

/// The last part of a window in which its end is searched.
const SEARCHED: usize = 6;
/// Samples whose loudness is compared.
const FRAME: usize = SAMPLE_RATE / 10;
/// What no sample of silence exceeds.
const SILENCE: f32 = 1e-4;

/// The windows of a recording, each of at most `most` samples. Those of silence are left out.
pub(super) fn of(samples: &[f32], most: usize) -> Vec<Range<usize>> {
    let (mut windows, mut start) = (Vec::new(), 0);
    while start < samples.len() {
        let end =
            if samples.len() - start <= most { samples.len() } else { start + quiet_place(&samples[start..][..most]) };
        windows.push(start..end);
        start = end;
    }
    windows.retain(|window| samples[window.clone()].iter().any(|sample| sample.abs() > SILENCE));
    windows
}

/// The middle of the quietest frame in the last part of a window.
fn quiet_place(window: &[f32]) -> usize {
    let searched = window.len() - window.len() / SEARCHED;
    let loudness = |frame: &[f32]| frame.iter().map(|sample| sample * sample).sum::<f32>();
    let frames = window[searched..].chunks_exact(FRAME).map(loudness).enumerate();
    let quietest = frames.min_by(|(_, left), (_, right)| left.total_cmp(right));
    quietest.map_or(window.len(), |(index, _)| searched + index * FRAME + FRAME / 2)
}

/// A WAV file of float32 samples of one channel.
pub(super) fn wav(samples: &[f32]) -> Vec<u8> {
    const FLOAT: u16 = 3;
    const BYTES: u16 = 4;
    let (bytes, rate) = (samples.len() as u32 * u32::from(BYTES), SAMPLE_RATE as u32);
    let mut file = Vec::with_capacity(44 + bytes as usize);
    file.extend(*b"RIFF");
    file.extend((36 + bytes).to_le_bytes());
    file.extend(*b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([FLOAT, 1].into_iter().flat_map(u16::to_le_bytes));
    file.extend([rate, rate * u32::from(BYTES)].into_iter().flat_map(u32::to_le_bytes));
    file.extend([BYTES, 8 * BYTES].into_iter().flat_map(u16::to_le_bytes));
    file.extend(*b"data");
    file.extend(bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::audio_file::AudioFile;

    #[test]
    fn a_window_ends_where_it_is_quiet() {
        let most = 6 * SAMPLE_RATE;
        let mut samples = vec![0.5; 2 * most];
        let quiet = 5 * SAMPLE_RATE + 3 * FRAME;
        samples[quiet..quiet + FRAME].fill(0.01);
        let windows = of(&samples, most);
        assert_eq!(windows[0], 0..quiet + FRAME / 2);
        assert!(windows.iter().all(|window| window.len() <= most));
        assert!(windows.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(windows.last().map(|window| window.end), Some(samples.len()));
    }

    #[test]
    fn a_short_recording_is_one_window_and_silence_is_none() {
        let windows = of(&[0.1; 1000], 1000);
        assert!(windows.len() == 1 && windows[0] == (0..1000), "{windows:?}");
        assert!(of(&[1e-5; 3000], 1000).is_empty() && of(&[], 1000).is_empty());
        let mut samples = vec![0.0; 3 * SAMPLE_RATE];
        samples[2 * SAMPLE_RATE + 100] = 0.5;
        let windows = of(&samples, SAMPLE_RATE);
        assert!(windows.len() == 1 && windows[0].contains(&(2 * SAMPLE_RATE + 100)), "{windows:?}");
    }

    #[test]
    fn a_window_is_read_as_it_was_written() {
        let samples: Vec<f32> = (0..400).map(|index| (index as f32 / 7.0).sin() / 3.0).collect();
        let file = wav(&samples);
        let read = AudioFile::open(&file, 9).and_then(AudioFile::decode).expect("it is a WAV file");
        assert_eq!(read, samples);
    }
}
