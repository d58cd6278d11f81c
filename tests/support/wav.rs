//! Audio files for tests.

/// A WAV file of one channel at 16 kHz with these 16-bit samples.
pub fn wav(samples: &[i16]) -> Vec<u8> {
    const RATE: u32 = 16_000;
    let bytes = samples.len() as u32 * 2;
    let mut file = Vec::from(*b"RIFF");
    file.extend((36 + bytes).to_le_bytes());
    file.extend(*b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1_u16, 1].into_iter().flat_map(u16::to_le_bytes));
    file.extend([RATE, RATE * 2].into_iter().flat_map(u32::to_le_bytes));
    file.extend([2_u16, 16].into_iter().flat_map(u16::to_le_bytes));
    file.extend(*b"data");
    file.extend(bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}
