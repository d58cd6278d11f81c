//! Decodes Opus packets of Ogg, WebM and MP4 files, with one or two channels.
//!
//! The decoder is that of `ropus`, behind the interface that the decoders of symphonia have. The header of a file states what a
//! packet does not: the number of channels, the samples at the start that are no part of the recording, and its gain.

use ropus::{Channels, DecodeMode, Decoder};
use symphonia::core::audio::layouts::{CHANNEL_LAYOUT_MONO, CHANNEL_LAYOUT_STEREO};
use symphonia::core::audio::{AsGenericAudioBufferRef, AudioBuffer, AudioMut, AudioSpec, GenericAudioBufferRef};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, FinalizeResult};
use symphonia::core::errors::{Error, decode_error};
use symphonia::core::packet::PacketRef;

/// Samples of a second of a channel, whatever rate was recorded.
pub(super) const RATE: u32 = 48_000;
/// The most samples that a packet has for a channel: those of 120 milliseconds.
const MOST_OF_PACKET: usize = 5_760;

const INFO: CodecInfo = CodecInfo { short_name: "opus", long_name: "Opus", profiles: &[] };

/// Why Opus audio is not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpusError {
    /// The header is missing, or states what no file has.
    #[error("the header of its Opus audio is missing or damaged")]
    Header,
    /// It has channels in several streams, or in another order.
    #[error("its Opus audio has a channel mapping of family {0}; accepted is family 0, which is mono or stereo")]
    Mapping(u8),
}

/// What the header of a file states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    channels: Channels,
    /// Samples of a channel at the start that are no part of the recording.
    skipped: u16,
    /// In 256ths of a decibel.
    gain: i16,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, OpusError> {
        let fields = bytes.strip_prefix(b"OpusHead").and_then(|rest| rest.first_chunk()).ok_or(OpusError::Header)?;
        let [version, channels, skip_a, skip_b, _, _, _, _, gain_a, gain_b, family]: [u8; 11] = *fields;
        // Version 0 is that of MP4, which has the high byte first.
        let number = |bytes| if version == 0 { i16::from_be_bytes(bytes) } else { i16::from_le_bytes(bytes) };
        let channels = match (family, channels) {
            (0, 1) => Channels::Mono,
            (0, 2) => Channels::Stereo,
            (0, _) => return Err(OpusError::Header),
            _ => return Err(OpusError::Mapping(family)),
        };
        let skipped = number([skip_a, skip_b]).cast_unsigned();
        Ok(Header { channels, skipped, gain: number([gain_a, gain_b]) })
    }

    fn decoder(self) -> Result<Decoder, OpusError> {
        let mut decoder = Decoder::new(RATE, self.channels).map_err(|_| OpusError::Header)?;
        decoder.set_gain(self.gain.into()).map_err(|_| OpusError::Header)?;
        Ok(decoder)
    }
}

/// A decoder of the packets of one track.
pub(super) struct OpusDecoder {
    parameters: AudioCodecParameters,
    decoder: Decoder,
    header: Header,
    /// Samples of a channel that are still to be skipped.
    to_skip: usize,
    interleaved: Vec<f32>,
    buffer: AudioBuffer<f32>,
}

impl OpusDecoder {
    /// A decoder for a track with a header.
    ///
    /// # Errors
    /// [`OpusError`].
    pub fn new(parameters: &AudioCodecParameters) -> Result<Self, OpusError> {
        let header = Header::read(parameters.extra_data.as_deref().unwrap_or_default())?;
        let layout = match header.channels {
            Channels::Mono => CHANNEL_LAYOUT_MONO,
            Channels::Stereo => CHANNEL_LAYOUT_STEREO,
        };
        Ok(OpusDecoder {
            parameters: parameters.clone(),
            decoder: header.decoder()?,
            header,
            to_skip: header.skipped.into(),
            interleaved: vec![0.0; MOST_OF_PACKET * header.channels.count()],
            buffer: AudioBuffer::new(AudioSpec::new(RATE, layout), MOST_OF_PACKET),
        })
    }

    /// Decodes a packet into the empty buffer.
    fn read(&mut self, packet: &PacketRef<'_>) -> Result<(), Error> {
        // Without bytes, the decoder would make up as many samples as there is space for.
        if packet.data.is_empty() {
            return decode_error("opus: a packet is empty");
        }
        let decoded = self.decoder.decode_float(packet.data, &mut self.interleaved, DecodeMode::Normal);
        let frames = decoded.map_err(|_| Error::DecodeError("opus: a packet is damaged"))?;
        self.buffer.resize_uninit(frames);
        self.buffer.copy_from_slice_interleaved(&&self.interleaved[..frames * self.header.channels.count()]);
        let skipped = self.to_skip.min(frames);
        self.to_skip -= skipped;
        // Some containers also say themselves what to skip.
        let cut = |duration: u64| usize::try_from(duration).unwrap_or(frames);
        self.buffer.trim(skipped.max(cut(packet.trim_start.get())), cut(packet.trim_end.get()));
        Ok(())
    }
}

impl AudioDecoder for OpusDecoder {
    fn reset(&mut self) {
        // A header that made a decoder once does so again.
        if let Ok(decoder) = self.header.decoder() {
            self.decoder = decoder;
        }
    }

    fn codec_info(&self) -> &CodecInfo {
        &INFO
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        &self.parameters
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Result<GenericAudioBufferRef<'_>, Error> {
        self.buffer.clear();
        self.read(packet)?;
        Ok(self.last_decoded())
    }

    fn finalize(&mut self) -> FinalizeResult {
        FinalizeResult::default()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.buffer.as_generic_audio_buffer_ref()
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use symphonia::core::packet::Packet;
    use symphonia::core::units::{Duration, Timestamp};

    use super::*;

    /// A frame of silence in one channel, 20 milliseconds long.
    const SILENCE: [u8; 3] = [0xf8, 0xff, 0xfe];

    fn header(channels: u8, skipped: u16, gain: i16, family: u8) -> Vec<u8> {
        let mut bytes = [&b"OpusHead"[..], &[1, channels], &skipped.to_le_bytes(), &48_000_u32.to_le_bytes()].concat();
        bytes.extend(gain.to_le_bytes());
        bytes.push(family);
        bytes
    }

    fn decoder(header: &[u8]) -> Result<OpusDecoder, OpusError> {
        let mut parameters = AudioCodecParameters::new();
        parameters.with_extra_data(header.into());
        OpusDecoder::new(&parameters)
    }

    fn packet(data: &[u8]) -> Packet {
        Packet::new(0, Timestamp::ZERO, Duration::ZERO, data)
    }

    #[test]
    fn headers_are_read_in_both_orders_of_bytes() {
        let expected = Header { channels: Channels::Stereo, skipped: 312, gain: -256 };
        assert_eq!(Header::read(&header(2, 312, -256, 0)), Ok(expected));
        let of_mp4 = *b"OpusHead\x00\x02\x01\x38\x00\x00\xbb\x80\xff\x00\x00";
        assert_eq!(Header::read(&of_mp4), Ok(expected));
    }

    #[test]
    fn other_channels_and_damaged_headers_are_refused() {
        let error = |bytes: &[u8]| decoder(bytes).err();
        assert_eq!(error(&header(6, 312, 0, 1)), Some(OpusError::Mapping(1)));
        assert_eq!(error(&header(2, 312, 0, 255)), Some(OpusError::Mapping(255)));
        assert_eq!(error(&header(3, 312, 0, 0)), Some(OpusError::Header));
        assert_eq!(error(&header(1, 312, 0, 0)[..18]), Some(OpusError::Header));
        assert_eq!(error(b""), Some(OpusError::Header));
    }

    #[test]
    fn samples_before_the_recording_are_left_out_over_several_packets() {
        let mut decoder = decoder(&header(2, 1_000, 0, 0)).unwrap();
        let lengths = [0; 3].map(|_| decoder.decode(&packet(&SILENCE)).unwrap().frames());
        assert_eq!(lengths, [0, 920, 960]);
    }

    #[test]
    fn containers_may_cut_both_ends() {
        let mut decoder = decoder(&header(1, 100, 0, 0)).unwrap();
        let mut cut = packet(&SILENCE);
        (cut.trim_start, cut.trim_end) = (Duration::new(160), Duration::new(300));
        assert_eq!(decoder.decode(&cut).unwrap().frames(), 500);
        cut.trim_end = Duration::new(u64::MAX);
        assert!(decoder.decode(&cut).unwrap().is_empty());
    }

    #[test]
    fn damaged_packets_leave_the_buffer_empty() {
        let mut decoder = decoder(&header(1, 0, 0, 0)).unwrap();
        for damaged in [&[][..], &[0xff], &[0xff, 0xff, 0xff]] {
            assert!(matches!(decoder.decode(&packet(damaged)), Err(Error::DecodeError(_))), "{damaged:?}");
            assert!(decoder.last_decoded().is_empty());
        }
        assert_eq!(decoder.decode(&packet(&SILENCE)).unwrap().frames(), 960);
    }
}
