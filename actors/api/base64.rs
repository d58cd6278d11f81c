//! Base64 with padding (RFC 4648, section 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text for some bytes.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().chain([&0, &0]).take(3).fold(0_usize, |word, byte| word << 8 | usize::from(*byte));
        for index in 0..4 {
            let digit = word >> (18 - 6 * index) & 63;
            text.push(if index <= chunk.len() { char::from(ALPHABET[digit]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| encode(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
