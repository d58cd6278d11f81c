//! The least work of an op: the bytes that it cannot avoid and the operations of its formula.
//!
//! Together with the peak rates of a machine (see [`roofline`](crate::roofline)) this gives a lower bound of an op's
//! time, to which the measured time is compared. The cost has these parts:
//!
//! - **Memory**: every weight once, in the form in which the kernel stores it (packed, if the kernel packs), or only
//!   the rows that are looked up. Also every position of the KV cache that the step reads or writes: its key and value
//!   once, no matter how many rows and heads read them. Biases and the weights of norms are too small to count.
//! - **Activations**: inputs and outputs in float32, each once. They stay in the CPU's caches if they fit, so they are
//!   counted separately from the bytes that come from memory.
//! - **Operations**: a multiplication and an addition are two operations. Only the operations of the model count. The
//!   integer kernels compute every product in two planes of 8 bits, which is not counted twice.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use crate::cpu::Kernel;
use crate::kv::PositionBytes;
use crate::op::Batch;

/// The least work of an op, or of a whole step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights and of the KV cache.
    pub memory_bytes: u64,
    /// Bytes of inputs and outputs.
    pub activation_bytes: u64,
    /// Operations on integers: products with quantised weights in the integer kernels.
    pub integer_operations: u64,
    /// Operations in float32.
    pub float_operations: u64,
}

impl Cost {
    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory_bytes + self.activation_bytes
    }

    /// All operations.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.integer_operations + self.float_operations
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            memory_bytes: self.memory_bytes + other.memory_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            integer_operations: self.integer_operations + other.integer_operations,
            float_operations: self.float_operations + other.float_operations,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), Add::add)
    }
}

/// What the cost of an op depends on: the [`CpuArgs`](crate::op::CpuArgs) without the values.
#[derive(Clone, Copy)]
pub struct CostArgs<'a> {
    /// The instruction set.
    pub kernel: Kernel,
    /// The rows of the step.
    pub batch: Batch<'a>,
    /// The bytes of one position in the KV cache, for each layer.
    pub kv_position_bytes: &'a [PositionBytes],
    /// The number of rows of the inputs.
    pub rows: usize,
    /// The number of rows of the outputs.
    pub output_rows: usize,
    /// The widths of the inputs.
    pub input_widths: &'a [usize],
    /// The widths of the outputs.
    pub output_widths: &'a [usize],
}

impl CostArgs<'_> {
    /// Bytes of all inputs and outputs.
    #[must_use]
    pub fn activation_bytes(&self) -> u64 {
        let inputs = self.rows * self.input_widths.iter().sum::<usize>();
        ((inputs + self.output_values()) * size_of::<f32>()) as u64
    }

    /// The number of values in all outputs.
    #[must_use]
    pub fn output_values(&self) -> usize {
        self.output_rows * self.output_widths.iter().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::add::Add as AddOp;
    use crate::attention::{Attention, EachOther, Window};
    use crate::embed::Embed;
    use crate::kv::{KvCache, KvShape, KvType};
    use crate::matmul::Linear;
    use crate::op::Op;
    use crate::quant::{Format, random};
    use crate::select_rows::SelectRows;

    /// The rows of a step.
    struct Rows {
        positions: Vec<u32>,
        sequences: Vec<u32>,
    }

    fn rows(sequences: &[(u32, u32)]) -> Rows {
        let mut rows = Rows { positions: Vec::new(), sequences: Vec::new() };
        for (index, &(first, count)) in (0..).zip(sequences) {
            rows.positions.extend(first..first + count);
            rows.sequences.extend((0..count).map(|_| index));
        }
        rows
    }

    fn cost(op: &dyn Op, kernel: Kernel, rows: &Rows, selected: &[u32], kv: &KvCache, input_widths: &[usize]) -> Cost {
        let batch = Batch {
            tokens: &rows.sequences,
            positions: &rows.positions,
            sequences: &rows.sequences,
            selected,
            ..Batch::default()
        };
        let output_widths = op.output_widths(input_widths).unwrap();
        let output_rows = op.selects_rows().map_or(batch.rows(), |selection| batch.selection(selection).len());
        let rows = batch.rows();
        op.cost(&CostArgs {
            kernel,
            batch,
            kv_position_bytes: &kv.position_bytes(),
            rows,
            output_rows,
            input_widths,
            output_widths: &output_widths,
        })
    }

    #[test]
    fn a_linear_reads_its_weights_once_for_any_number_of_rows() {
        // 48 rows of 64 columns in Q4_1: two blocks of 20 bytes per row in the file, and the same when packed in strips
        // of 16.
        let weight = |rows| random::weight("w", Format::Q4_1, rows, 64, 1);
        let op = Linear::new(vec![weight(32), weight(16)], vec![None, None]).unwrap();
        for (count, operations) in [(1, 2 * 48 * 64), (3, 3 * 2 * 48 * 64)] {
            let of = |kernel| cost(&op, kernel, &rows(&[(0, count)]), &[], &KvCache::empty(), &[64]);
            let floats = Cost {
                memory_bytes: 48 * 40,
                activation_bytes: u64::from(count) * (64 + 48) * 4,
                integer_operations: 0,
                float_operations: operations,
            };
            assert_eq!(of(Kernel::Scalar), floats);
            assert_eq!(of(Kernel::Avx2Integer), Cost { integer_operations: operations, float_operations: 0, ..floats });
        }
        let nothing = cost(&op, Kernel::Scalar, &rows(&[]), &[], &KvCache::empty(), &[64]);
        assert_eq!(nothing, Cost::default(), "without rows the weights are not read");
    }

    #[test]
    fn a_packed_weight_counts_its_packed_bytes() {
        // Q4_K: 144 bytes for 256 columns; packed, each 6-bit scale and minimum uses a byte: 2 + 2 + 16 + 128 = 148.
        let op = Linear::new(vec![random::weight("w", Format::Q4_K, 16, 256, 1)], vec![None]).unwrap();
        let of = |kernel| cost(&op, kernel, &rows(&[(0, 1)]), &[], &KvCache::empty(), &[256]);
        assert_eq!(of(Kernel::Avx2).memory_bytes, 16 * 144);
        assert_eq!(of(Kernel::Avx2Integer).memory_bytes, 16 * 148);
        // Floating-point weights are used unpacked, with float32 products.
        let op = Linear::new(vec![random::weight("w", Format::F16, 16, 256, 1)], vec![None]).unwrap();
        let cost = cost(&op, Kernel::Avx2Integer, &rows(&[(0, 1)]), &[], &KvCache::empty(), &[256]);
        assert_eq!((cost.memory_bytes, cost.integer_operations), (16 * 512, 0));
    }

    #[test]
    fn attention_reads_each_position_once_and_computes_with_it_for_every_row() {
        let shape = KvShape::grouped(2, 8);
        let attention = Attention {
            layer: 1,
            stores: true,
            n_heads: 6,
            kv: shape,
            scale: 1.0,
            window: None,
            sees_later: false,
            each_other: EachOther::All,
            softcap: None,
            sinks: None,
            slopes: None,
            selection: None,
        };
        // The key and value of a position: 2 heads of 8 values each, stored as whole vectors of 16.
        let per_head = [(KvType::F16, 16 * 2), (KvType::F32, 16 * 4), (KvType::Q8_0, 16 + 2)];
        for (kv_type, position_bytes) in per_head.map(|(kv_type, bytes)| (kv_type, 2 * 2 * bytes)) {
            let kv = KvCache::new(vec![shape; 2], 1, kv_type);
            let of = |attention: &Attention, sequences: &[(u32, u32)]| {
                cost(attention, Kernel::Scalar, &rows(sequences), &[], &kv, &[48, 16, 16])
            };
            // A decode row at position 9 sees ten positions. Rows at 0, 1 and 2 see six in total, which are three
            // positions.
            let both = of(&attention, &[(9, 1), (0, 3)]);
            assert_eq!(both.memory_bytes, (10 + 3) * position_bytes);
            assert_eq!(both.float_operations, (10 + 6) * 6 * 8 * 4);
            assert_eq!(both.activation_bytes, 4 * (48 + 16 + 16 + 48) * 4);
            // With a window of four, the rows at 9 and 10 see positions 6 to 10.
            let window = Attention { window: Some(Window::Last(4)), ..attention.clone() };
            let window = of(&window, &[(9, 2)]);
            assert_eq!((window.memory_bytes, window.float_operations), (5 * position_bytes, 8 * 6 * 8 * 4));
        }
    }

    #[test]
    fn an_embedding_reads_its_rows_and_small_ops_read_their_values() {
        let table = Embed::new(random::weight("table", Format::Q8_0, 100, 64, 1), 1.0);
        let embed = cost(&table, Kernel::Scalar, &rows(&[(0, 3)]), &[], &KvCache::empty(), &[]);
        assert_eq!((embed.memory_bytes, embed.activation_bytes), (3 * 68, 3 * 64 * 4));

        let add = cost(&AddOp, Kernel::Scalar, &rows(&[(0, 3)]), &[], &KvCache::empty(), &[64, 64]);
        assert_eq!((add.memory_bytes, add.activation_bytes, add.operations()), (0, 3 * 3 * 64 * 4, 3 * 64));

        let select = cost(&SelectRows::new(), Kernel::Scalar, &rows(&[(0, 3)]), &[2], &KvCache::empty(), &[64]);
        assert_eq!((select.activation_bytes, select.operations()), (2 * 64 * 4, 0));
    }

    #[test]
    fn costs_add_up() {
        let one = Cost { memory_bytes: 1, activation_bytes: 2, integer_operations: 3, float_operations: 4 };
        let two = [one, one].into_iter().sum::<Cost>();
        assert_eq!((two.bytes(), two.operations()), (6, 14));
    }
}
