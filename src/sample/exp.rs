//! exp for rows of logits: plain arithmetic without branches, so that the compiler turns loops over it into vectors.

/// e^x for x ≤ 0, within 2 units in the last place; 0 below -87.
///
/// `x = n ln 2 + r` with |r| ≤ ln 2 / 2; the series of e^r up to r^7 / 7!; times 2^n put together from its bits.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding and taking away 1.5 · 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let inside = x.max(-87.0);
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (inside - n * LN_2_HIGH) - n * LN_2_LOW;
    let series = 1.0
        + r * (1.0
            + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0))))));
    // The low bits of `rounded` are n; from there to the exponent, whose bias is that of 1.0.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()));
    if x >= -87.0 { series * power } else { 0.0 }
}

/// `sum_i e^f(x[i])` in f64, always in the same order: eight lanes, then the lanes from first to last.
pub(super) fn sum_exp<T: Copy>(values: &[T], f: impl Fn(T) -> f32) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0f64; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        let weights = block.map(|value| exp(f(value)));
        for lane in 0..LANES {
            lanes[lane] += f64::from(weights[lane]);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(exp(f(value)));
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_exact_one_to_the_last_bits() {
        for i in 0..870_000 {
            let x = -0.0001 * i as f32;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 2.5e-7, "exp({x})");
        }
        assert_eq!([exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
    }

    #[test]
    fn sums_take_every_value_once() {
        for n in 0..20 {
            assert_eq!(sum_exp(&vec![0.0; n], |value| value), n as f64);
        }
    }
}
