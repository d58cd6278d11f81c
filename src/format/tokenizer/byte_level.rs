//! The spelling of byte-level vocabularies: each of the 256 bytes is one printable character.
//!
//! Bytes that are printable in Latin-1 map to themselves; the other 68 map to U+0100 and following, in order.
//! Source: Radford et al. 2019 (GPT-2), `bytes_to_unicode`.

/// The first character for bytes that are not printable in Latin-1.
const SHIFTED_START: u32 = 0x100;

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of each byte.
const CHAR_OF_BYTE: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut shifted = SHIFTED_START;
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::cast_possible_truncation)] // The loop ends at 255.
        let (printable, itself) = (is_printable(byte as u8), byte as u8 as char);
        chars[byte] = if printable {
            itself
        } else {
            shifted += 1;
            char::from_u32(shifted - 1).expect("U+0100 to U+0143 are characters")
        };
        byte += 1;
    }
    chars
};

/// Appends `bytes` in the vocabulary's spelling.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| CHAR_OF_BYTE[usize::from(byte)]));
}

/// Appends the bytes of `text`. Characters that spell no byte are kept.
pub(super) fn decode(text: &str, out: &mut Vec<u8>) {
    for character in text.chars() {
        match byte_of(character) {
            Some(byte) => out.push(byte),
            None => out.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn byte_of(character: char) -> Option<u8> {
    if let Ok(byte) = u8::try_from(u32::from(character)) {
        return is_printable(byte).then_some(byte);
    }
    // The shifted bytes are in order: 0x00-0x20, 0x7F-0xA0, 0xAD.
    let index = u8::try_from(u32::from(character).checked_sub(SHIFTED_START)?).ok()?;
    match index {
        0..=0x20 => Some(index),
        0x21..=0x42 => Some(index - 0x21 + 0x7F),
        0x43 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_round_trip_and_space_is_spelled_as_usual() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        encode(&bytes, &mut text);
        assert_eq!(text.chars().count(), 256);
        assert_eq!(text.chars().nth(32), Some('Ġ'));
        let mut back = Vec::new();
        decode(&text, &mut back);
        assert_eq!(back, bytes);
    }

    #[test]
    fn characters_that_spell_no_byte_are_kept() {
        let mut bytes = Vec::new();
        decode("Ġ日", &mut bytes);
        assert_eq!(bytes, " 日".as_bytes());
    }
}
