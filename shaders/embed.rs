//! Embed: looks up rows of an embedding table: by token, by position, or by which of two texts a row belongs to.

use crate::cases::{Case, CaseBatch, CaseStep, Expected};
use crate::cost::{Cost, CostArgs};
use crate::cpu::for_each_chunk;
use crate::gpu::weight::{RUN_COLUMNS, WeightLayout};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{Batch, CpuArgs, Op, ShapeError};
use crate::quant::{Format, random};
use crate::weight::Weight;

/// `y[r] = table[index of r] * scale`; only the rows that are looked up are decoded.
///
/// - table: [vocabulary, hidden] in any format; it may also be the weight of the output head
/// - y: [rows, hidden] f32; there is no input, as tokens, positions and texts are those of the batch
/// - `scale` is 1 for most models; Gemma uses the square root of `hidden`
#[derive(Debug)]
pub struct Embed {
    table: Weight,
    scale: f32,
    index: Index,
}

/// Which row of the table a row of the step gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Index {
    /// That of its token.
    Token,
    /// That of its token, or the first if the table lacks it.
    KnownToken,
    /// That of its position.
    Position,
    /// The second for rows of the [second of two texts](Batch::second_texts) if the table has it, else the first.
    Text,
}

impl Embed {
    /// An embedding of tokens over `table`, whose values are multiplied by `scale`.
    #[must_use]
    pub fn new(table: Weight, scale: f32) -> Self {
        Embed { table, scale, index: Index::Token }
    }

    /// The same over a table that may lack the last tokens: they get its first row.
    #[must_use]
    pub fn of_known_tokens(table: Weight, scale: f32) -> Self {
        Embed { table, scale, index: Index::KnownToken }
    }

    /// An embedding of positions, which the table has one row for.
    #[must_use]
    pub fn of_positions(table: Weight) -> Self {
        Embed { table, scale: 1.0, index: Index::Position }
    }

    /// An embedding of which text a row belongs to: the first row of the table, or the second for the second of two texts. A table
    /// of one row does not tell them apart.
    #[must_use]
    pub fn of_texts(table: Weight) -> Self {
        Embed { table, scale: 1.0, index: Index::Text }
    }
}

impl Index {
    /// The row of the table, which has `rows`, for a row of the step.
    fn of(self, batch: &Batch<'_>, row: usize, rows: usize) -> usize {
        match self {
            Index::Token => batch.tokens[row] as usize,
            Index::KnownToken => Some(batch.tokens[row] as usize).filter(|token| *token < rows).unwrap_or(0),
            Index::Position => batch.positions[row] as usize,
            Index::Text => usize::from(rows > 1 && batch.is_of_second_text(row)),
        }
    }

    /// The number that represents it in `embed.comp`.
    fn kind(self) -> u32 {
        match self {
            Index::Token => 0,
            Index::Position => 1,
            Index::Text => 2,
            Index::KnownToken => 3,
        }
    }
}

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 0)?;
        Ok(vec![self.table.columns])
    }

    fn weights(&self) -> Vec<&Weight> {
        vec![&self.table]
    }

    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let memory_bytes = (args.batch.rows() * self.table.row_bytes()) as u64;
        let float_operations = args.output_values() as u64;
        Cost { memory_bytes, activation_bytes: args.activation_bytes(), float_operations, ..Cost::default() }
    }

    /// # Panics
    /// When a token or position is not in the table. The engine checks both before it forms the batch.
    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        const ROWS_PER_TASK: usize = 16;
        let (batch, rows, width) = (args.batch, args.batch.rows(), self.table.columns);
        let output = &mut *args.outputs[0];
        assert_eq!(output.len(), rows * width, "output of {:?}", self.table);
        for_each_chunk(args.team, output, ROWS_PER_TASK * width, &|task, output| {
            for (index, output) in output.chunks_exact_mut(width).enumerate() {
                let row = task * ROWS_PER_TASK + index;
                self.table.format.dequantize(self.table.row(self.index.of(&batch, row, self.table.rows)), output);
                for value in output {
                    *value *= self.scale;
                }
            }
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let Weight { format, rows, columns, .. } = self.table;
        let push = args.weights[0]
            .push()
            .address(args.outputs[0].region.address)
            .address(args.step)
            .size(columns)
            .float(self.scale)
            .word(self.index.kind())
            .size(rows);
        let mut dispatch = args.each_column(Module::Embed, push, columns.div_ceil(RUN_COLUMNS));
        dispatch.constants.extend(WeightLayout::new(format, rows, columns).constants());
        vec![dispatch]
    }
}

/// The expected results: every format, and widths that are not whole runs, where the format permits them.
#[must_use]
pub fn cases() -> Vec<Case> {
    const VOCABULARY: u32 = 50;
    let case = |format: Format, columns: usize| {
        let op = Embed::new(random::weight("table", format, VOCABULARY as usize, columns, 3), 2.5);
        let table = op.table.to_f32();
        let step = |rows: u32| {
            let tokens: Vec<u32> = (0..rows).map(|row| (row * 7 + 3) % VOCABULARY).collect();
            let values = tokens.iter().flat_map(|&token| &table[token as usize * columns..][..columns]);
            // A value may be the difference of two larger ones: its code times its scale, and its minimum.
            let tolerance = f64::from(2.5 * 3.0 * random::LIMIT * f32::EPSILON);
            let expected = values.map(|value| Expected { value: 2.5 * f64::from(*value), tolerance });
            let step = CaseStep::of_rows(tokens.len(), vec![], vec![expected.collect()]);
            CaseStep { batch: CaseBatch { tokens, ..step.batch }, ..step }
        };
        let steps = vec![step(1), step(3), step(40)];
        Case::new(format!("{format}, {columns} columns"), op, steps)
    };
    let whole = Format::ALL.iter().map(|format| case(*format, 512));
    let any_width = || Format::ALL.iter().filter(|format| format.block_len() == 1);
    let widths = any_width().flat_map(|format| [33, 46, 2].map(|columns| case(*format, columns)));
    let indexed = [Index::Position, Index::Text, Index::KnownToken].map(|index| indexed_case(index, 9));
    whole.chain(widths).chain(indexed).chain([indexed_case(Index::Text, 1)]).collect()
}

/// Rows of two sequences, which get the rows of their positions, of their texts, or of their tokens in a table of `entries` rows.
fn indexed_case(index: Index, entries: usize) -> Case {
    const COLUMNS: usize = 48;
    let op = Embed { index, ..Embed::new(random::weight("table", Format::F32, entries, COLUMNS, 5), 1.0) };
    let table = op.table.to_f32();
    let positions: Vec<u32> = vec![0, 1, 2, 7, 8];
    let tokens: Vec<u32> = vec![3, 8, 9, 0, 500];
    let rows: [usize; 5] = match index {
        Index::Position => [0, 1, 2, 7, 8],
        Index::Text if entries > 1 => [0, 0, 1, 0, 1],
        Index::KnownToken => [3, 8, 0, 0, 0],
        Index::Token | Index::Text => [0; 5],
    };
    let values: Vec<f32> = rows.iter().flat_map(|row| table[row * COLUMNS..(row + 1) * COLUMNS].to_vec()).collect();
    let step = CaseStep::of_rows(5, vec![], vec![Expected::exactly(&values)]);
    let batch = CaseBatch { positions, sequences: vec![0, 0, 0, 1, 1], tokens, ..step.batch };
    let batch = CaseBatch { block_tables: vec![Vec::new(); 2], second_texts: vec![2, 8], ..batch };
    Case::new(format!("{index:?} of {entries}"), op, vec![CaseStep { batch, ..step }])
}

#[cfg(test)]
mod tests {
    use super::Embed;
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::kv::KvCache;
    use crate::op::{Batch, CpuArgs, Op};
    use crate::quant::{Format, random};
    use crate::recurrent::StateCache;
    use crate::tuning::Tuning;

    fn embed(op: &Embed, tokens: &[u32]) -> Vec<f32> {
        let mut output = vec![f32::NAN; tokens.len() * op.table.columns];
        let batch = Batch { tokens, ..Batch::default() };
        op.run_cpu(&mut CpuArgs {
            kernel: Kernel::Scalar,
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            team: &Solo,
            batch,
            kv: &KvCache::empty(),
            states: &StateCache::empty(),
            rows: tokens.len(),
            scratch: &mut [],
            inputs: &[],
            outputs: &mut [&mut output],
        });
        output
    }

    #[test]
    fn each_token_gives_its_row_of_the_table_in_every_format() {
        for &format in Format::ALL {
            let op = Embed::new(random::weight("table", format, 50, 512, 3), 2.5);
            let values = op.table.to_f32();
            let tokens: Vec<u32> = (0..40).map(|index| index * 7 % 50).collect();
            let expected: Vec<f32> = tokens
                .iter()
                .flat_map(|&token| &values[token as usize * 512..(token as usize + 1) * 512])
                .map(|value| value * 2.5)
                .collect();
            assert_eq!(embed(&op, &tokens), expected, "{format}");
        }
    }

    #[test]
    fn the_output_is_as_wide_as_the_table_and_there_is_no_input() {
        let op = Embed::new(random::weight("table", Format::Q8_0, 4, 64, 3), 1.0);
        assert_eq!(op.output_widths(&[]), Ok(vec![64]));
        assert!(op.output_widths(&[64]).is_err());
        assert_eq!(embed(&op, &[]), []);
    }
}
