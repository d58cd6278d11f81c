//! The probability of a token relative to the best one, as an integer.
//!
//! Sums of floats depend on the order of additions, which differs between devices. Sums of integers do not: the same
//! weights have the same sum on every device, so the same random number draws the same token. The weight itself is
//! computed in float32 without fused operations and divisions, so its bits are the same everywhere too.

/// Fraction bits of a weight: the weight of the best token, 1.0, is `1 << FRACTION_BITS`.
///
/// A token whose probability is less than about e^-27 of that of the best token has weight 0. The sum of 2^23 weights
/// fits 64 bits.
pub const FRACTION_BITS: u32 = 40;

/// The weight of a scaled logit ≤ 0: e^x times 2^40, rounded down.
#[inline(always)]
#[must_use]
pub fn weight(scaled: f32) -> u64 {
    /// From this value on a float64 has no fraction bits: adding it rounds, and the low bits of the sum are the
    /// integer.
    const WHOLE: f64 = (1u64 << (f64::MANTISSA_DIGITS - 1)) as f64;
    const ONE: f64 = (1u64 << FRACTION_BITS) as f64;
    let exact = f64::from(exp(scaled)) * ONE;
    let rounded = (exact + WHOLE) - WHOLE;
    let down = rounded - if rounded > exact { 1.0 } else { 0.0 };
    (down + WHOLE).to_bits() - WHOLE.to_bits()
}

/// The sum of the weights of scaled logits.
pub fn sum<T: Copy>(values: &[T], scaled: impl Fn(T) -> f32) -> u64 {
    values.iter().map(|value| weight(scaled(*value))).sum()
}

/// How the logits of a row are scaled before they are weighed.
#[derive(Debug, Clone, Copy)]
pub struct RowScale {
    /// The largest logit of the row.
    pub max: f32,
    /// One over the temperature.
    pub inverse: f32,
    /// Scaled logits below this one have no weight.
    pub floor: f32,
}

impl RowScale {
    /// The scaled logit, which is at most 0.
    ///
    /// Relative to the largest logit, so that a tiny temperature gives 0 and minus infinity, never plus infinity.
    #[inline(always)]
    #[must_use]
    pub fn apply(self, logit: f32) -> f32 {
        (logit - self.max) * self.inverse
    }
}

crate::per_kernel! {
    /// The sum of the weights of a row of logits: the same on every kernel.
    pub fn sum_of_row = sum_of_row_with(logits: &[f32], scale: RowScale) -> u64
}

#[inline(always)]
fn sum_of_row_with<const FMA: bool>(logits: &[f32], scale: RowScale) -> u64 {
    let weigh = |logit: &f32| {
        let scaled = scale.apply(*logit);
        weight(if scaled >= scale.floor { scaled } else { f32::NEG_INFINITY })
    };
    logits.iter().map(weigh).sum()
}

/// `ceil(share * total)` for a share from 0 to 1.
#[must_use]
pub fn share_of(total: u64, share: f32) -> u64 {
    share_of_bits(total, share_bits(share))
}

/// The same for a share with 64 fraction bits.
pub(super) fn share_of_bits(total: u64, share: u64) -> u64 {
    let product = u128::from(total) * u128::from(share);
    (product >> 64) as u64 + u64::from(product as u64 != 0)
}

/// Converts a share below 1 to 64 fraction bits.
pub(super) fn share_bits(share: f32) -> u64 {
    (f64::from(share) * 64f64.exp2()) as u64
}

/// `floor(total * random / 2^64)`: a uniformly distributed integer below `total`.
#[must_use]
pub fn below(total: u64, random: u64) -> u64 {
    ((u128::from(total) * u128::from(random)) >> 64) as u64
}

/// e^x for x ≤ 0, within 2 units in the last place; 0 below -87.
///
/// `x = n ln 2 + r` with |r| ≤ ln 2 / 2. The result is the series of e^r up to r^7 / 7!, times 2^n, which is built from
/// its bits. There are no branches, so that the compiler vectorises loops over it.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    /// Adding and subtracting 1.5 · 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// 1 / 2!, 1 / 3! … 1 / 7!
    const INVERSES: [f32; 6] = [0.5, 0.166_666_67, 0.041_666_668, 0.008_333_334, 0.001_388_888_9, 0.000_198_412_7];
    let inside = x.max(-87.0);
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (inside - n * LN_2_HIGH) - n * LN_2_LOW;
    let [second, third, fourth, fifth, sixth, seventh] = INVERSES;
    let series = 1.0 + r * (1.0 + r * (second + r * (third + r * (fourth + r * (fifth + r * (sixth + r * seventh))))));
    // The low bits of `rounded` are n. Shift them to the exponent and add the bias, which is the exponent of 1.0.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()));
    if x >= -87.0 { series * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in 0..870_000 {
            let x = -0.0001 * i as f32;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 2.5e-7, "exp({x})");
        }
        assert_eq!([exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
    }

    #[test]
    fn weights_are_exp_with_40_fraction_bits() {
        for i in 0..60_000 {
            let x = -0.0005 * i as f32;
            let exact = f64::from(exp(x)) * f64::from(FRACTION_BITS).exp2();
            assert_eq!(weight(x), exact as u64, "weight({x})");
        }
        assert_eq!([weight(0.0), weight(-0.0)], [1 << FRACTION_BITS; 2]);
        for nothing in [-28.0, -88.0, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(weight(nothing), 0, "weight({nothing})");
        }
    }

    #[test]
    fn shares_are_rounded_up_and_draws_down() {
        let one = 1 << FRACTION_BITS;
        assert_eq!([share_of(4 * one, 0.5), share_of(3, 0.5), share_of(3, 1e-9)], [2 * one, 2, 1]);
        assert_eq!([below(10, 0), below(10, 1 << 63), below(10, u64::MAX)], [0, 5, 9]);
    }
}
