//! Random numbers without state: each number is a hash of the seed and the token's position.

/// Identifies one draw of a sequence: the same draw always gives the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The request's seed.
    pub seed: u64,
    /// Position of the token in its sequence, from 0. The prompt counts, so that a generation which is continued with its own
    /// tokens as prompt draws the same numbers.
    pub position: u64,
}

impl Draw {
    /// The draw's random number: 64 uniform bits.
    #[must_use]
    pub fn random(self) -> u64 {
        random_bits(self.seed, self.position)
    }
}

/// 64 uniform bits: two rounds of the SplitMix64 finaliser (Steele et al. 2014) over seed and position.
fn random_bits(seed: u64, position: u64) -> u64 {
    mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ position.wrapping_mul(0xD1B5_4A32_D192_ED03))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_are_uniform_over_positions_and_seeds() {
        for by_seed in [false, true] {
            let mut bins = [0u32; 16];
            for i in 0..16_000 {
                let value = if by_seed { random_bits(i, 7) } else { random_bits(7, i) };
                bins[(value >> 60) as usize] += 1;
            }
            let chi_square: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi_square < 37.7, "15 degrees of freedom, p = 0.001: {chi_square}");
        }
    }
}
