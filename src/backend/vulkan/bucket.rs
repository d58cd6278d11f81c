//! Buckets: steps of similar size run the same recorded commands.

use cuelight_shaders::gpu::RowCount;
use cuelight_shaders::op::Batch;

use crate::engine::EngineLimits;
use crate::graph::Rows;

/// Upper bounds on the size of a step. All steps within the same bounds run the same commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub rows: usize,
    pub selected: usize,
    pub hidden: usize,
    /// Equal to `rows` if sequences have few rows each, so that all decode steps of a size share a bucket.
    pub sequences: usize,
    pub context_tokens: usize,
}

impl Bucket {
    /// The bucket of a step. Its bounds are powers of two, so that there are few buckets, capped by the engine's limits.
    pub fn of(batch: &Batch<'_>, limits: &EngineLimits) -> Self {
        const SHORTEST_CONTEXT: usize = 256;
        const FEW_ROWS_OF_SEQUENCE: usize = 4;
        let up_to = |count: usize, most: usize| count.max(1).next_power_of_two().min(most.max(1));
        let longest = batch.positions.iter().max().map_or(0, |position| *position as usize + 1);
        let rows = up_to(batch.rows(), limits.max_batched_tokens);
        let sequences = up_to(batch.run_starts().count(), rows);
        Bucket {
            rows,
            sequences: if sequences * FEW_ROWS_OF_SEQUENCE > rows { rows } else { sequences },
            selected: up_to(batch.selected.len(), limits.max_logits_rows),
            // Few steps have any, and the ops of these rows are left out of the others.
            hidden: if batch.hidden.is_empty() { 0 } else { up_to(batch.hidden.len(), limits.hidden.max_rows) },
            context_tokens: up_to(longest.max(SHORTEST_CONTEXT), limits.context_tokens.max(SHORTEST_CONTEXT)),
        }
    }

    /// The maximum number of rows of a value in this bucket.
    pub fn rows(self, rows: Rows) -> RowCount {
        match rows {
            Rows::All => RowCount::All(self.rows),
            Rows::Selected => RowCount::Selected(self.selected),
            Rows::Hidden => RowCount::Hidden(self.hidden),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_sequences_only_if_they_have_many_rows() {
        let limits = EngineLimits {
            vocab_size: 0,
            context_tokens: 4096,
            kv_blocks: 0,
            max_batched_tokens: 512,
            max_sequences: 64,
            max_logits_rows: 64,
            device: String::new(),
            ..EngineLimits::default()
        };
        let bucket = |rows_of_each: &[usize]| {
            let of_each = || (0..).zip(rows_of_each);
            let sequences: Vec<u32> = of_each().flat_map(|(index, rows)| vec![index; *rows]).collect();
            let positions: Vec<u32> = of_each().flat_map(|(_, rows)| 0..*rows as u32).collect();
            let (tokens, tables) = (&positions, vec![&[][..]; rows_of_each.len()]);
            let batch = Batch {
                tokens,
                positions: &positions,
                sequences: &sequences,
                block_tables: &tables,
                ..Batch::default()
            };
            let bucket = Bucket::of(&batch, &limits);
            (bucket.rows, bucket.sequences)
        };
        assert_eq!(bucket(&[300]), (512, 1));
        assert_eq!(bucket(&[300, 1, 1]), (512, 4));
        assert_eq!(bucket(&[1; 9]), (16, 16), "all decode steps of this size share a bucket");
        assert_eq!(bucket(&[2; 9]), (32, 32));
    }
}
