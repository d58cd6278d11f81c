//! A fast checksum of a block's content.

/// Odd numbers, one for each lane.
const FACTORS: [u64; 4] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63];

/// 128 bits that differ for any two contents that differ in up to 32 neighbouring bytes, and with near certainty for any others.
///
/// Four lanes take one word of eight bytes each in turn. A lane's step is a bijection of the lane and of the word, so a change is
/// never lost. This detects damage; it is no protection against an attacker.
pub(super) fn checksum(bytes: &[u8]) -> [u64; 2] {
    let mut lanes = FACTORS.map(|factor| factor ^ bytes.len() as u64);
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        step(&mut lanes, chunk);
    }
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    step(&mut lanes, &last);
    let [a, b, c, d] = lanes;
    [mix(mix(mix(mix(a) ^ b) ^ c) ^ d), mix(mix(mix(mix(d) ^ a).rotate_left(17) ^ b) ^ c)]
}

#[inline]
fn step(lanes: &mut [u64; 4], chunk: &[u8; 32]) {
    for ((lane, word), factor) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0).zip(FACTORS) {
        *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(factor).rotate_left(31);
    }
}

/// A bijection in which every bit depends on all.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 32)).wrapping_mul(FACTORS[0]);
    value = (value ^ (value >> 29)).wrapping_mul(FACTORS[1]);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_changed_byte_and_any_other_length_change_both_halves(
            bytes in prop::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
        ) {
            let [first, second] = checksum(&bytes);
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= change;
            let [other_first, other_second] = checksum(&changed);
            prop_assert!(first != other_first && second != other_second);
            prop_assert_ne!([first, second], checksum(&bytes[..bytes.len() - 1]));
            changed.clone_from(&bytes);
            changed.push(0);
            prop_assert_ne!([first, second], checksum(&changed));
        }
    }
}
