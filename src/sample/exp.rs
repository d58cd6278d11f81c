//! Sums of `exp` over rows of logits.

use cuelight_shaders::sample_token::weight::exp;

/// `sum_i e^f(x[i])` in f64 in a fixed order: eight lanes, then the lanes from first to last.
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
    fn every_value_is_added_once() {
        for n in 0..20 {
            assert_eq!(sum_exp(&vec![0.0; n], |value| value), n as f64);
        }
    }
}
