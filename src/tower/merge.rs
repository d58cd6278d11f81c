//! What happens between the layers and the projector: the class token goes, and neighbouring rows become one.

/// How neighbouring rows become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merging {
    /// Their values one after the other. Zeros fill the last row.
    Joined,
    /// The mean of their values. A rest of rows is left out.
    Mean,
}

/// What a tower leaves of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Rows before those that are merged.
    pub class_rows: usize,
    /// Consecutive rows that become one.
    pub neighbours: usize,
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
            Merging::Joined => self.neighbours * self.hidden,
            Merging::Mean => self.hidden,
        }
    }

    /// The number of merged rows that `rows` rows become.
    #[must_use]
    pub fn rows(&self, rows: usize) -> usize {
        match self.merging {
            Merging::Joined => rows.div_ceil(self.neighbours),
            Merging::Mean => rows / self.neighbours,
        }
    }

    /// The merged rows of the tower's rows, [class rows + rows, hidden].
    #[must_use]
    pub fn apply(&self, mut rows: Vec<f32>) -> Vec<f32> {
        rows.drain(..self.class_rows * self.hidden);
        match self.merging {
            Merging::Joined => {
                rows.resize(rows.len().next_multiple_of(self.width()), 0.0);
                rows
            }
            Merging::Mean => {
                rows.chunks_exact(self.neighbours * self.hidden).flat_map(|rows| self.mean(rows)).collect()
            }
        }
    }

    /// The mean of neighbouring rows.
    fn mean(&self, rows: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.hidden];
        for row in rows.chunks_exact(self.hidden) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums.iter().map(|sum| sum / self.neighbours as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_rows_are_joined_or_averaged_without_the_class_token() {
        let rows: Vec<f32> = (0..10).map(|value| value as f32).collect();
        let merge = |merging| Merge { class_rows: 1, neighbours: 2, merging, hidden: 2 };
        assert_eq!((merge(Merging::Joined).width(), merge(Merging::Mean).width()), (4, 2));
        assert_eq!(merge(Merging::Joined).apply(rows.clone()), rows[2..]);
        assert_eq!(merge(Merging::Mean).apply(rows.clone()), [3.0, 4.0, 7.0, 8.0]);
        assert_eq!(merge(Merging::Joined).apply(rows[..8].to_vec())[4..], [6.0, 7.0, 0.0, 0.0]);
        assert_eq!(merge(Merging::Mean).apply(rows[..8].to_vec()), [3.0, 4.0]);
    }
}
