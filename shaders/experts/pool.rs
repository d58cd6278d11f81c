//! A pool of device slots for some of the experts of several layers. Experts are loaded and evicted at run time.
//!
//! A pool is an [`Experts`] op with *slots*: its tensors have one slot for each of a fixed number of experts, and its
//! routes contain slot numbers. The tensors have no bytes on the host. [`Experts::write_expert`] writes an expert in
//! the layout of the device, and the caller copies it to a slot.

use std::ops::Range;
use std::sync::Arc;

use super::{ExpertMatrix, Experts};
use crate::gpu::weight::WeightLayout;
use crate::op::Op;
use crate::weight::Weight;

/// The buffer of an op that bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The weight with this index.
    Weight(usize),
    /// The table with this index.
    Table(usize),
}

/// A part of an expert's bytes, and its destination in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertPart {
    /// The weight or table.
    pub target: Target,
    /// The byte at which the part starts there.
    pub start: u64,
    /// The range of the part in the expert's bytes.
    pub bytes: Range<usize>,
}

impl Experts {
    /// The same experts with slots: a row can be routed to `n_experts` experts, and the routes contain the slots of the
    /// experts in the tensors.
    #[must_use]
    pub fn with_slots(self, n_experts: usize) -> Self {
        Experts { n_experts, uses_slots: true, ..self }
    }

    /// A pool of `slots` slots for experts of this layer, and of every layer for which [`Experts::shares_pool`] holds.
    #[must_use]
    pub fn pool(&self, slots: usize) -> Self {
        let tables: Vec<Arc<[f32]>> =
            self.gpu_tables().iter().map(|table| vec![0.0; table.len() / self.n_experts * slots].into()).collect();
        let blank = |matrix: &ExpertMatrix| {
            let is_own = |table: &&[f32]| matrix.table().is_some_and(|own| std::ptr::eq(own, *table));
            let table = self.gpu_tables().iter().position(is_own).map(|index| Arc::clone(&tables[index]));
            matrix.blank(slots, table)
        };
        let (gate, up, down) = (self.gate.as_ref().map(blank), blank(&self.up), blank(&self.down));
        Experts { gate, up, down, ..self.clone() }.with_slots(self.n_experts)
    }

    /// Whether one pool can hold experts of both layers.
    #[must_use]
    pub fn shares_pool(&self, other: &Experts) -> bool {
        let of_op = |experts: &Experts| {
            let sizes = (experts.n_experts, experts.top_k, experts.weights().len(), experts.gpu_tables().len());
            (experts.activation, experts.weighting, sizes)
        };
        let of_matrix = |matrix: &ExpertMatrix| {
            let tensor = matrix.tensor();
            let of_table = (matrix.has_bias(), matrix.has_factors());
            (tensor.format, matrix.outputs(), matrix.columns(), matrix.first_and_stride(), of_table)
        };
        of_op(self) == of_op(other) && self.matrices().map(of_matrix).eq(other.matrices().map(of_matrix))
    }

    /// Bytes of one expert in the layout of a device.
    #[must_use]
    pub fn expert_bytes(&self) -> usize {
        self.parts_at(0).last().map_or(0, |part| part.bytes.end)
    }

    /// Writes one expert in the layout of a device. The bytes are the same for every slot. They are taken from the
    /// weights that are packed for the CPU, or from the file if the weights are not packed.
    ///
    /// # Panics
    /// When there is no such expert, the op is a pool, or the length of `bytes` is not [`Experts::expert_bytes`].
    pub fn write_expert(&self, expert: usize, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (index, weight) in self.weights().into_iter().enumerate() {
            let (layout, rows) = (layout_of(weight), weight.rows / self.n_experts);
            let mut planes = [0, 1, 2, 3].map(|plane| {
                let (bytes, after) = std::mem::take(&mut rest).split_at_mut(layout.plane_bytes(plane, rows));
                rest = after;
                bytes
            });
            let of_tensor = |matrix: &&ExpertMatrix| matrix.tensor().name == self.weights()[index].name;
            for matrix in self.matrices().filter(of_tensor) {
                let (first, end) = (matrix.first_and_stride().0, matrix.first_and_stride().0 + matrix.outputs());
                let mut plane = 0;
                let of_matrix = planes.each_mut().map(|bytes| {
                    let range = layout.plane_bytes(plane, first)..layout.plane_bytes(plane, end);
                    plane += 1;
                    &mut bytes[range]
                });
                matrix.write_planes(expert, &layout, of_matrix);
            }
        }
        for table in self.gpu_tables() {
            let len = table.len() / self.n_experts;
            for value in &table[expert * len..(expert + 1) * len] {
                let (bytes, after) = std::mem::take(&mut rest).split_at_mut(size_of::<f32>());
                bytes.copy_from_slice(&value.to_le_bytes());
                rest = after;
            }
        }
        assert!(rest.is_empty(), "`bytes` has the length of one expert");
    }

    /// The destinations of an expert's bytes in slot `slot`. The op must be a pool.
    #[must_use]
    pub fn parts_at(&self, slot: usize) -> Vec<ExpertPart> {
        let mut parts = Vec::new();
        let mut end = 0;
        let mut part = |target, start: u64, len: usize| {
            end += len;
            parts.push(ExpertPart { target, start, bytes: end - len..end });
        };
        for (index, weight) in self.weights().into_iter().enumerate() {
            let (layout, rows) = (layout_of(weight), weight.rows / self.up.n_experts());
            for plane in (0..4).filter(|plane| layout.plane_bytes(*plane, rows) > 0) {
                part(Target::Weight(index), layout.plane_start(plane, slot * rows), layout.plane_bytes(plane, rows));
            }
        }
        for (index, table) in self.gpu_tables().into_iter().enumerate() {
            let len = size_of_val(table) / self.up.n_experts();
            part(Target::Table(index), (slot * len) as u64, len);
        }
        parts
    }

    /// Bytes that one slot of a pool of these experts uses on a device.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        let weights = self.weights().into_iter().map(|weight| layout_of(weight).bytes());
        let tables = self.gpu_tables().into_iter().map(|table| size_of_val(table) as u64);
        (weights.sum::<u64>() + tables.sum::<u64>()).div_ceil(self.up.n_experts() as u64)
    }
}

fn layout_of(weight: &Weight) -> WeightLayout {
    WeightLayout::new(weight.format, weight.rows, weight.columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Solo;
    use crate::experts::RouteWeighting;
    use crate::glu::Activation;
    use crate::quant::{Format, random};
    use crate::testing::supported_kernels;

    const N_EXPERTS: usize = 5;

    fn experts(format: Format, seed: u64) -> Experts {
        let bias = |rows: usize, seed| -> Option<Arc<[f32]>> { Some(random::activations(rows, seed).into()) };
        let tensor = |name: &str, outputs: usize, columns, seed| {
            random::weight(name, format, N_EXPERTS * outputs, columns, seed)
        };
        let both = tensor("gate and up", 2 * 32, 64, seed);
        let [gate, up] = ExpertMatrix::halves(&both, N_EXPERTS, bias(both.rows, seed).as_ref()).unwrap();
        let down = tensor("down", 64, 32, seed + 1);
        let down = ExpertMatrix::new(down.clone(), N_EXPERTS, bias(down.rows, seed + 2)).unwrap();
        let down = down.with_factors(Some(&[0.5, 1.5, 2.0, 3.0, 4.0])).unwrap();
        Experts::new([gate, up, down], Activation::Silu, RouteWeighting::Output, 2).unwrap()
    }

    /// The memory of a device after some writes to the weights and tables of an op.
    struct Memory {
        weights: Vec<Vec<u8>>,
        tables: Vec<Vec<u8>>,
    }

    impl Memory {
        fn of(experts: &Experts) -> Self {
            let weights = experts.weights().into_iter().map(|weight| vec![0; layout_of(weight).bytes() as usize]);
            let tables = experts.gpu_tables().into_iter().map(|table| vec![0; size_of_val(table)]);
            Memory { weights: weights.collect(), tables: tables.collect() }
        }

        fn write(&mut self, experts: &Experts, expert: usize, pool: &Experts, slot: usize) {
            let mut bytes = vec![0xaa; experts.expert_bytes()];
            experts.write_expert(expert, &mut bytes);
            for part in pool.parts_at(slot) {
                let memory = match part.target {
                    Target::Weight(index) => &mut self.weights[index],
                    Target::Table(index) => &mut self.tables[index],
                };
                let bytes = &bytes[part.bytes];
                memory[part.start as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    #[test]
    fn a_pool_with_each_expert_in_its_own_slot_has_the_bytes_of_the_tensors() {
        for format in [Format::Q4_0, Format::F16, Format::MXFP4] {
            let experts = experts(format, 1);
            let pool = experts.pool(N_EXPERTS);
            assert!(pool.uses_slots() && pool.weights().iter().all(|weight| weight.is_blank()));
            let mut memory = Memory::of(&pool);
            for expert in 0..N_EXPERTS {
                memory.write(&experts, expert, &pool, expert);
            }
            let mut whole = Memory::of(&experts);
            for (bytes, weight) in whole.weights.iter_mut().zip(experts.weights()) {
                for (start, part) in layout_of(weight).pack(weight, 0, weight.rows) {
                    bytes[start as usize..][..part.len()].copy_from_slice(&part);
                }
            }
            assert_eq!(memory.weights, whole.weights, "{format}");
            let tables = experts.gpu_tables().into_iter();
            let tables: Vec<Vec<u8>> =
                tables.map(|table| table.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
            assert_eq!(memory.tables, tables);
        }
    }

    #[test]
    fn weights_packed_for_the_cpu_give_the_same_bytes_as_the_file() {
        for (format, kernel) in supported_kernels().flat_map(|kernel| [(Format::Q4_0, kernel), (Format::MXFP4, kernel)])
        {
            let stored = experts(format, 1);
            let mut packed = stored.clone();
            packed.prepare_cpu(kernel, &Solo);
            for expert in 0..N_EXPERTS {
                let [from_file, from_strips] = [&stored, &packed].map(|experts| {
                    let mut bytes = vec![0xaa; experts.expert_bytes()];
                    experts.write_expert(expert, &mut bytes);
                    bytes
                });
                assert!(from_file == from_strips, "{format}, {kernel}");
            }
        }
    }

    #[test]
    fn an_expert_fills_exactly_its_slot() {
        let experts = experts(Format::Q5_0, 1);
        let pool = experts.pool(9);
        let (mut once, mut twice) = (Memory::of(&pool), Memory::of(&pool));
        once.write(&experts, 4, &pool, 7);
        twice.write(&experts, 1, &pool, 7);
        twice.write(&experts, 4, &pool, 7);
        assert_eq!((once.weights, once.tables), (twice.weights, twice.tables), "nothing of the first expert remains");
        assert!(experts.slot_bytes() >= experts.expert_bytes() as u64);
        let of_pool = pool.weights().into_iter().map(|weight| layout_of(weight).bytes()).sum::<u64>();
        assert!(of_pool + 9 * 4 * (2 * 32 + 64) <= 9 * experts.slot_bytes() + 100, "{of_pool}");
    }

    #[test]
    fn only_layers_of_the_same_shape_share_a_pool() {
        assert!(experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q4_0, 2)));
        assert!(!experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q5_0, 1)));
    }
}
