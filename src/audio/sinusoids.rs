//! Sines and cosines of positions, instead of a learnt table.

use std::f64::consts::E;

/// The longest period, in units of 2 pi.
const LONGEST: f64 = 10_000.0;

/// [positions, width]: for each position its sines with periods that grow evenly by a factor up to [`LONGEST`], then its cosines.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need".
#[must_use]
pub fn sinusoids(positions: impl IntoIterator<Item = usize>, width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = LONGEST.ln() / half.saturating_sub(1).max(1) as f64;
    let angle = |position: usize, index: usize| position as f64 * E.powf(-step * index as f64);
    let row = |position: usize| {
        let sines = (0..half).map(move |index| angle(position, index).sin() as f32);
        sines.chain((0..half).map(move |index| angle(position, index).cos() as f32))
    };
    positions.into_iter().flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_grow_from_one_to_the_longest() {
        let rows = sinusoids([0, 3], 8);
        assert_eq!(rows[..8], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        let expected = [3.0_f64.sin(), (3.0 / LONGEST).sin(), 3.0_f64.cos(), (3.0 / LONGEST).cos()];
        assert_eq!([8, 11, 12, 15].map(|index| rows[index]), expected.map(|value| value as f32));
    }
}
