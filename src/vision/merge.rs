//! What happens between the tower and the projector: the class token goes, and neighbouring patches become one row.

use super::family::Merging;

/// What a tower leaves of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Rows before those of patches.
    pub class_rows: usize,
    /// Consecutive patches that become one row.
    pub patches: usize,
    /// How.
    pub merging: Merging,
    /// Values of a row of the tower.
    pub hidden: usize,
}

impl Merge {
    /// Values of a merged row.
    #[must_use]
    pub fn width(&self) -> usize {
        match self.merging {
            Merging::Joined => self.patches * self.hidden,
            Merging::Mean => self.hidden,
        }
    }

    /// The merged rows of the tower's rows, [class rows + patches, hidden].
    #[must_use]
    pub fn apply(&self, mut rows: Vec<f32>) -> Vec<f32> {
        rows.drain(..self.class_rows * self.hidden);
        match self.merging {
            Merging::Joined => rows,
            Merging::Mean => rows.chunks_exact(self.patches * self.hidden).flat_map(|rows| self.mean(rows)).collect(),
        }
    }

    /// The mean of the rows of one square.
    fn mean(&self, rows: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.hidden];
        for row in rows.chunks_exact(self.hidden) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums.iter().map(|sum| sum / self.patches as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_rows_are_joined_or_averaged_without_the_class_token() {
        let rows: Vec<f32> = (0..10).map(|value| value as f32).collect();
        let merge = |merging| Merge { class_rows: 1, patches: 2, merging, hidden: 2 };
        assert_eq!((merge(Merging::Joined).width(), merge(Merging::Mean).width()), (4, 2));
        assert_eq!(merge(Merging::Joined).apply(rows.clone()), rows[2..]);
        assert_eq!(merge(Merging::Mean).apply(rows), [3.0, 4.0, 7.0, 8.0]);
    }
}
