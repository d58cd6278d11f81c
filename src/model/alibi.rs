//! ALiBi: attention scores that fall with the distance between two positions, by a slope for each head.

use std::sync::Arc;

/// The slopes of ALiBi, \[n_heads\]: how much the scores of a head fall with each position.
///
/// They are the powers of `2^(-bias / n)` with exponents 1 to n, where n is the largest power of two up to the number of
/// heads. The other heads have the odd powers of the root of that. Source: Press et al. 2022, "Train Short, Test Long".
#[must_use]
pub fn slopes(n_heads: usize, max_bias: f32) -> Arc<[f32]> {
    let whole = (n_heads + 1).next_power_of_two() / 2;
    let slope = |head: usize| {
        let power = if head < whole { 2 * (head + 1) } else { 2 * (head - whole) + 1 };
        (-max_bias / 2.0 * power as f32 / whole as f32).exp2()
    };
    (0..n_heads).map(slope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_powers_and_further_heads_lie_between_them() {
        assert_eq!(*slopes(4, 8.0), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(*slopes(6, 8.0), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(*slopes(1, 8.0), [0.00390625]);
    }
}
