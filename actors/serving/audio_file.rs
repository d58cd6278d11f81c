//! Reads audio files: WAV, MP3, FLAC, AAC as such or in MP4, and Vorbis and Opus in Ogg or WebM.
//!
//! Channels become one, and the samples get the rate that encoders take. The length is limited while a file is decoded, because not
//! every format states it.

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuelight_engine::audio::SAMPLE_RATE;
use rubato::audioadapter_buffers::owned::InterleavedOwned;
use rubato::{Async, FixedAsync, Resampler, SincInterpolationParameters, SincInterpolationType, WindowFunction};
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use super::opus::{self, OpusDecoder, OpusError};

/// The rates that are read.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// Why a file is not read as audio.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AudioFileError {
    /// It has no format or codec that is read.
    #[error("it is not a WAV, MP3, FLAC, Ogg Vorbis, Opus, WebM or AAC file")]
    UnknownFormat,
    /// Its Opus audio is not decoded.
    #[error(transparent)]
    Opus(#[from] OpusError),
    /// It is longer than is accepted.
    #[error("it is longer than the {most} seconds that this server accepts (--max-audio-seconds)")]
    TooLong {
        /// The limit.
        most: usize,
    },
    /// Its number of samples a second.
    #[error("it has {0} samples a second; accepted are 4000 to 384000")]
    Rate(u32),
    /// It is damaged, or uses what the decoder does not know.
    #[error("it cannot be decoded: {0}")]
    Damaged(String),
}

/// An audio file whose header was read.
pub(crate) struct AudioFile<'a> {
    format: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// Samples of a second.
    rate: u32,
    /// The most seconds that it may have: those of its header, or of its bytes.
    seconds: usize,
    most_seconds: usize,
}

impl<'a> AudioFile<'a> {
    /// Reads the header of a file of at most `most_seconds` seconds.
    ///
    /// # Errors
    /// [`AudioFileError`].
    pub fn open(bytes: &'a [u8], most_seconds: usize) -> Result<Self, AudioFileError> {
        guarded(|| Self::read_header(bytes, most_seconds))
    }

    fn read_header(bytes: &'a [u8], most_seconds: usize) -> Result<Self, AudioFileError> {
        /// No codec has fewer bytes for a second of speech.
        const LEAST_BYTES_OF_SECOND: usize = 500;
        let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), MediaSourceStreamOptions::default());
        let probed = symphonia::default::get_probe().probe(
            &Hint::new(),
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        );
        let format = probed.map_err(|_| AudioFileError::UnknownFormat)?;
        let track = format.default_track(TrackType::Audio).ok_or(AudioFileError::UnknownFormat)?;
        let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
        let parameters = parameters.ok_or(AudioFileError::UnknownFormat)?;
        let rate = rate_of(parameters)?;
        let decoder = decoder_of(parameters)?;
        let stated = track.num_frames.map(|frames| frames.div_ceil(u64::from(rate)));
        if stated.is_some_and(|seconds| seconds > most_seconds as u64) {
            return Err(AudioFileError::TooLong { most: most_seconds });
        }
        let seconds = most_seconds.min(bytes.len() / LEAST_BYTES_OF_SECOND + 1);
        let seconds = stated.map_or(seconds, |stated| seconds.min(stated as usize + 1));
        Ok(AudioFile { track: track.id, format, decoder, rate, seconds, most_seconds })
    }

    /// Bytes of memory that decoding and preparing needs: its samples, those at the rate of encoders without and with silence
    /// after them, and two copies of the spectrogram.
    pub fn bytes(&self) -> usize {
        const OF_SAMPLE: usize = 4;
        const PREPARED_OF_SECOND: usize = 2 * OF_SAMPLE * SAMPLE_RATE + 2 * 4 * 100 * 128;
        const WINDOW_SECONDS: usize = 30;
        (self.seconds * self.rate as usize * OF_SAMPLE)
            .saturating_add((self.seconds + WINDOW_SECONDS) * PREPARED_OF_SECOND)
    }

    /// The samples of one channel, [`SAMPLE_RATE`] a second.
    ///
    /// # Errors
    /// [`AudioFileError`].
    pub fn decode(self) -> Result<Vec<f32>, AudioFileError> {
        guarded(|| self.read_samples())
    }

    fn read_samples(mut self) -> Result<Vec<f32>, AudioFileError> {
        let most = self.most_seconds.saturating_mul(self.rate as usize);
        let mut samples: Vec<f32> = Vec::new();
        let mut interleaved: Vec<f32> = Vec::new();
        while let Some(channels) = self.next_packet(&mut interleaved)? {
            let mean = |frame: &[f32]| frame.iter().sum::<f32>() / channels as f32;
            samples.extend(interleaved.chunks_exact(channels).map(mean));
            if samples.len() > most {
                return Err(AudioFileError::TooLong { most: self.most_seconds });
            }
        }
        // Floats in a file may be infinite or no numbers, and larger than those of any recording.
        samples.iter_mut().for_each(|sample| *sample = if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 });
        resampled(samples, self.rate)
    }

    /// Decodes the next packet, and returns the number of its channels. `None` at the end, also of a file that was cut off.
    fn next_packet(&mut self, interleaved: &mut Vec<f32>) -> Result<Option<usize>, AudioFileError> {
        loop {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(None),
                Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(damaged(error)),
            };
            if packet.track_id != self.track {
                continue;
            }
            match self.decoder.decode(&packet) {
                Ok(buffer) if buffer.spec().rate() != self.rate => {
                    return Err(AudioFileError::Damaged("its sample rate changes".to_owned()));
                }
                Ok(buffer) if buffer.is_empty() => {}
                Ok(buffer) => {
                    buffer.copy_to_vec_interleaved(interleaved);
                    return Ok(Some(buffer.num_planes().max(1)));
                }
                // A packet that is damaged is left out, as players do.
                Err(Error::DecodeError(_)) => {}
                Err(error) => return Err(damaged(error)),
            }
        }
    }
}

/// The samples of a second that are decoded.
fn rate_of(parameters: &AudioCodecParameters) -> Result<u32, AudioFileError> {
    // WebM files may state the rate of the microphone instead.
    if parameters.codec == CODEC_ID_OPUS {
        return Ok(opus::RATE);
    }
    let rate = parameters.sample_rate.ok_or(AudioFileError::UnknownFormat)?;
    if RATES.contains(&rate) { Ok(rate) } else { Err(AudioFileError::Rate(rate)) }
}

/// The decoder of a codec.
fn decoder_of(parameters: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, AudioFileError> {
    if parameters.codec == CODEC_ID_OPUS {
        return Ok(Box::new(OpusDecoder::new(parameters)?));
    }
    symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(|_| AudioFileError::UnknownFormat)
}

/// The samples at the rate of encoders.
fn resampled(samples: Vec<f32>, rate: u32) -> Result<Vec<f32>, AudioFileError> {
    const CHUNK: usize = 1024;
    if rate as usize == SAMPLE_RATE || samples.is_empty() {
        return Ok(samples);
    }
    let parameters = SincInterpolationParameters {
        sinc_len: 128,
        f_cutoff: None,
        oversampling_factor: 256,
        interpolation: SincInterpolationType::Linear,
        window: WindowFunction::BlackmanHarris2,
    };
    let ratio = SAMPLE_RATE as f64 / f64::from(rate);
    let mut resampler =
        Async::<f32>::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input).map_err(damaged)?;
    let length = samples.len();
    let input = InterleavedOwned::new_from(samples, 1, length).map_err(damaged)?;
    Ok(resampler.process_all(&input, length, None).map_err(damaged)?.take_data())
}

/// Runs a decoder. Those of some formats panic on damaged files.
fn guarded<T>(read: impl FnOnce() -> Result<T, AudioFileError>) -> Result<T, AudioFileError> {
    // What a panic leaves behind is dropped with the file.
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(AudioFileError::Damaged("its decoder failed".to_owned())))
}

fn damaged(error: impl std::fmt::Display) -> AudioFileError {
    AudioFileError::Damaged(error.to_string())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A WAV file of 16-bit samples.
    pub(crate) fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
        let bytes = samples.len() as u32 * 2;
        let of_frame = channels * 2;
        let mut file = Vec::from(*b"RIFF");
        file.extend((36 + bytes).to_le_bytes());
        file.extend(*b"WAVEfmt ");
        file.extend(16_u32.to_le_bytes());
        file.extend([1, channels].into_iter().flat_map(u16::to_le_bytes));
        file.extend([rate, rate * u32::from(of_frame)].into_iter().flat_map(u32::to_le_bytes));
        file.extend([of_frame, 16].into_iter().flat_map(u16::to_le_bytes));
        file.extend(*b"data");
        file.extend(bytes.to_le_bytes());
        file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        file
    }

    fn tone(rate: u32, hertz: f64, seconds: f64) -> Vec<i16> {
        let samples = (seconds * f64::from(rate)) as usize;
        let angle = |index: usize| 2.0 * std::f64::consts::PI * hertz * index as f64 / f64::from(rate);
        (0..samples).map(|index| (16_000.0 * angle(index).sin()) as i16).collect()
    }

    fn read(file: &[u8]) -> Result<Vec<f32>, AudioFileError> {
        AudioFile::open(file, 60)?.decode()
    }

    #[test]
    fn samples_are_read_exactly_and_channels_become_their_mean() {
        let samples: Vec<i16> = (-500..500).map(|index| index * 60).collect();
        let expected: Vec<f32> = samples.iter().map(|sample| f32::from(*sample) / 32_768.0).collect();
        assert_eq!(read(&wav(16_000, 1, &samples)).unwrap(), expected);
        let means: Vec<f32> = expected.chunks(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        assert_eq!(read(&wav(16_000, 2, &samples)).unwrap(), means);
    }

    #[test]
    fn another_rate_keeps_a_tone_and_its_length() {
        const LEVEL: f64 = 16_000.0 / 32_768.0;
        for rate in [8_000, 22_050, 44_100, 48_000] {
            let found = read(&wav(rate, 1, &tone(rate, 440.0, 0.5))).unwrap();
            assert_eq!(found.len(), 8_000, "{rate}");
            let (of_tone, of_other) = (part_of(&found, 440.0), part_of(&found, 600.0));
            assert!((of_tone / LEVEL - 1.0).abs() < 0.01 && of_other < 2e-3, "{rate}: {of_tone} {of_other}");
        }
        // A tone above half of the new rate is not heard as another one.
        let found = read(&wav(48_000, 1, &tone(48_000, 12_000.0, 0.5))).unwrap();
        assert!(found[200..7_800].iter().all(|sample| sample.abs() < 2e-3));
    }

    fn fixture(name: &str) -> Vec<u8> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio_files").join(name);
        std::fs::read(path).unwrap()
    }

    /// The part of the level that is a tone of this frequency.
    fn part_of(samples: &[f32], hertz: f64) -> f64 {
        let angle = |index: usize| 2.0 * std::f64::consts::PI * hertz * index as f64 / SAMPLE_RATE as f64;
        let sum = |wave: fn(f64) -> f64| -> f64 {
            samples.iter().enumerate().map(|(index, sample)| f64::from(*sample) * wave(angle(index))).sum()
        };
        2.0 * sum(f64::sin).hypot(sum(f64::cos)) / samples.len() as f64
    }

    const FIXTURES: [&str; 8] =
        ["tone.mp3", "tone.flac", "tone.ogg", "tone.aac", "tone.m4a", "tone.opus", "tone.webm", "voice.opus"];

    #[test]
    fn each_format_gives_the_tone_in_it() {
        for name in FIXTURES {
            let samples = read(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            // Some codecs add silence.
            assert!((3_900..5_500).contains(&samples.len()), "{name}: {}", samples.len());
            let (tone, other) = (part_of(&samples, 440.0), part_of(&samples, 1000.0));
            assert!((0.35..0.55).contains(&tone) && other < 0.02, "{name}: {tone} {other}");
        }
    }

    #[test]
    fn opus_has_the_length_of_the_recording() {
        for name in ["tone.opus", "voice.opus"] {
            assert_eq!(read(&fixture(name)).unwrap().len(), SAMPLE_RATE / 4, "{name}");
        }
        // What follows the recording in its last packet stays: WebM says so where the demultiplexer does not look.
        assert!((4_000..4_320).contains(&read(&fixture("tone.webm")).unwrap().len()));
    }

    #[test]
    fn opus_with_other_channels_is_refused_with_the_reason() {
        let mut bytes = fixture("tone.webm");
        let header = bytes.windows(8).position(|bytes| bytes == b"OpusHead").unwrap();
        bytes[header + 18] = 1;
        assert_eq!(read(&bytes).unwrap_err(), AudioFileError::Opus(OpusError::Mapping(1)));
    }

    #[test]
    fn a_longer_file_is_refused_by_its_header() {
        let long = wav(4_000, 1, &vec![0; 4_000 * 3]);
        assert_eq!(AudioFile::open(&long, 2).err(), Some(AudioFileError::TooLong { most: 2 }));
        assert!(AudioFile::open(&long, 3).unwrap().bytes() < 100 << 20);
        assert_eq!(AudioFile::open(&wav(100, 1, &[0; 200]), 9).err(), Some(AudioFileError::Rate(100)));
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        for bytes in [&b""[..], b"hello", b"\x89PNG\r\n\x1a\n", b"OpusHead", b"RIFF"] {
            assert_eq!(read(bytes).unwrap_err(), AudioFileError::UnknownFormat);
        }
    }

    #[test]
    fn a_file_on_which_the_decoder_panics_is_damaged() {
        let mut file = wav(8_000, 2, &[0; 800]);
        // The header states more channels than the decoder multiplies with the bytes of a sample.
        file[23] = 128;
        assert!(read(&file).is_err());
        let error = guarded::<()>(|| panic!("on purpose")).unwrap_err();
        assert_eq!(error.to_string(), "it cannot be decoded: its decoder failed");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn damaged_files_give_samples_or_an_error(
            name in prop::sample::select([&["wav"][..], &FIXTURES].concat()),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in 0usize..400,
        ) {
            let mut bytes = if name == "wav" { wav(8_000, 2, &tone(8_000, 300.0, 0.05)) } else { fixture(name) };
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(samples) = read(&bytes) {
                prop_assert!(samples.len() <= 60 * SAMPLE_RATE + 1 && samples.iter().all(|sample| sample.is_finite()));
            }
        }
    }
}
