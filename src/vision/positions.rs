//! What tells a tower where the patches of a tile are: a row of a table for each, or a rotation of queries and keys.

use super::patches::in_order;

/// How a tower encodes positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// By a stored table with a row for each patch of a square tile, after that of a class token.
    Table,
    /// By a rotation of queries and keys. Source: Agrawal et al. 2024, "Pixtral 12B".
    Rotation,
}

/// The base of the frequencies of rotations.
const BASE: f32 = 10_000.0;

/// The sizes of a rotation: each head has pairs of neighbouring values, of which the first half turns with the row of a patch, the
/// second half with its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Heads.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

impl Rotation {
    /// The column that each value is combined with, `[hidden]`: the other one of its pair.
    #[must_use]
    pub fn partners(&self) -> Vec<f32> {
        (0..self.heads * self.head_dim).map(|column| (column ^ 1) as f32).collect()
    }

    /// The factors of values and of their partners, each [patches, hidden].
    #[must_use]
    pub fn factors(&self, grid: [usize; 2], merge: usize) -> [Vec<f32>; 2] {
        let [mut own, mut of_partner] = [Vec::new(), Vec::new()];
        for [column, row] in in_order(grid, merge) {
            let angles: Vec<f32> = (0..self.head_dim / 2).map(|pair| self.angle(pair, [column, row])).collect();
            let of_head: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos(); 2]).collect();
            own.extend(of_head.repeat(self.heads));
            let of_head: Vec<f32> = angles.iter().flat_map(|angle| [-angle.sin(), angle.sin()]).collect();
            of_partner.extend(of_head.repeat(self.heads));
        }
        [own, of_partner]
    }

    /// The angle of a pair of a patch.
    fn angle(&self, pair: usize, [column, row]: [usize; 2]) -> f32 {
        let half = self.head_dim / 4;
        let (position, index) = if pair < half { (row, 2 * pair) } else { (column, 2 * (pair - half) + 1) };
        position as f32 * BASE.powf(-((2 * index) as f32) / self.head_dim as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_half_of_the_pairs_turns_with_the_row_and_the_second_with_the_column() {
        let rotation = Rotation { heads: 2, head_dim: 8 };
        assert_eq!(rotation.partners()[..4], [1.0, 0.0, 3.0, 2.0]);
        let [own, of_partner] = rotation.factors([2, 2], 1);
        let patch = |values: &[f32], index: usize| values[16 * index..16 * index + 8].to_vec();
        assert_eq!(patch(&own, 0), [1.0; 8]);
        // The second patch is in the second column, the third one in the second row.
        assert_eq!(patch(&own, 1)[..4], [1.0; 4]);
        assert_eq!(patch(&own, 2)[4..], [1.0; 4]);
        assert_eq!(patch(&of_partner, 2)[..2], [-1.0_f32.sin(), 1.0_f32.sin()]);
        let slow = 10_000.0_f32.powf(-0.25);
        assert_eq!(patch(&of_partner, 1)[5], slow.sin());
    }
}
