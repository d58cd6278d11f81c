//! Room on a device for some experts of several layers, which come and go.
//!
//! A pool is an [`Experts`] op with *places*: tensors that have room for so many experts, and routes that say where
//! each one is. Its tensors have no bytes of their own; an expert is written as a device takes it
//! ([`Experts::write_expert`]) and brought to a place there.

use std::ops::Range;
use std::sync::Arc;

use super::{ExpertMatrix, Experts};
use crate::gpu::weight::WeightLayout;
use crate::op::Op;
use crate::weight::Weight;

/// What of an op bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One of its weights, by its number.
    Weight(usize),
    /// One of its tables, by its number.
    Table(usize),
}

/// A part of an expert's bytes, and where in a pool it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertPart {
    /// The weight or table.
    pub target: Target,
    /// Where in it the part starts.
    pub start: u64,
    /// Which of the expert's bytes these are.
    pub bytes: Range<usize>,
}

impl Experts {
    /// The same experts, of which a row may be routed to `n_experts`; their tensors have experts at places that the routes
    /// tell.
    #[must_use]
    pub fn placed(self, n_experts: usize) -> Self {
        Experts { n_experts, is_placed: true, ..self }
    }

    /// Room for `places` experts like these: of this layer, and of any other that [`Experts::shares_pool`].
    #[must_use]
    pub fn pool(&self, places: usize) -> Self {
        let biases: Vec<Arc<[f32]>> =
            self.gpu_tables().iter().map(|bias| vec![0.0; bias.len() / self.n_experts * places].into()).collect();
        let blank = |matrix: &ExpertMatrix| {
            let is_own = |bias: &&[f32]| matrix.bias().is_some_and(|own| std::ptr::eq(own, *bias));
            let bias = self.gpu_tables().iter().position(is_own).map(|index| Arc::clone(&biases[index]));
            matrix.blank(places, bias)
        };
        let [gate, up, down] = self.matrices().map(blank);
        Experts { gate, up, down, ..self.clone() }.placed(self.n_experts)
    }

    /// Whether a pool may have experts of both.
    #[must_use]
    pub fn shares_pool(&self, other: &Experts) -> bool {
        let of_op = |experts: &Experts| {
            let sizes = (experts.n_experts, experts.top_k, experts.weights().len(), experts.gpu_tables().len());
            (experts.activation, experts.weighting, sizes)
        };
        let of_matrix = |matrix: &ExpertMatrix| {
            let tensor = matrix.tensor();
            (tensor.format, matrix.outputs(), matrix.columns(), matrix.first_and_stride(), matrix.bias().is_some())
        };
        of_op(self) == of_op(other) && self.matrices().map(of_matrix) == other.matrices().map(of_matrix)
    }

    /// Bytes of one expert as a device takes it.
    #[must_use]
    pub fn expert_bytes(&self) -> usize {
        self.parts_at(0).last().map_or(0, |part| part.bytes.end)
    }

    /// Writes one of the experts as a device takes it, the same bytes for any place. They come from what was arranged for the
    /// processor, or, where nothing was, from the file.
    ///
    /// # Panics
    /// When there is no such expert, these are a pool, or `bytes` are not [`Experts::expert_bytes`].
    pub fn write_expert(&self, expert: usize, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (index, weight) in self.weights().into_iter().enumerate() {
            let (layout, rows) = (layout_of(weight), weight.rows / self.n_experts);
            let mut planes = [0, 1, 2, 3].map(|plane| {
                let (bytes, behind) = std::mem::take(&mut rest).split_at_mut(layout.plane_bytes(plane, rows));
                rest = behind;
                bytes
            });
            let of_tensor = |matrix: &&ExpertMatrix| matrix.tensor().name == self.weights()[index].name;
            for matrix in self.matrices().into_iter().filter(of_tensor) {
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
                let (bytes, behind) = std::mem::take(&mut rest).split_at_mut(size_of::<f32>());
                bytes.copy_from_slice(&value.to_le_bytes());
                rest = behind;
            }
        }
        assert!(rest.is_empty(), "the bytes are one expert's");
    }

    /// Where an expert's bytes belong for it to be at a place of these, which are a pool.
    #[must_use]
    pub fn parts_at(&self, place: usize) -> Vec<ExpertPart> {
        let mut parts = Vec::new();
        let mut end = 0;
        let mut part = |target, start: u64, len: usize| {
            end += len;
            parts.push(ExpertPart { target, start, bytes: end - len..end });
        };
        for (index, weight) in self.weights().into_iter().enumerate() {
            let (layout, rows) = (layout_of(weight), weight.rows / self.gate.n_experts());
            for plane in (0..4).filter(|plane| layout.plane_bytes(*plane, rows) > 0) {
                part(Target::Weight(index), layout.plane_start(plane, place * rows), layout.plane_bytes(plane, rows));
            }
        }
        for (index, table) in self.gpu_tables().into_iter().enumerate() {
            let len = size_of_val(table) / self.gate.n_experts();
            part(Target::Table(index), (place * len) as u64, len);
        }
        parts
    }

    /// Bytes that a place of a pool of these takes on a device.
    #[must_use]
    pub fn place_bytes(&self) -> u64 {
        let weights = self.weights().into_iter().map(|weight| layout_of(weight).bytes());
        let tables = self.gpu_tables().into_iter().map(|table| size_of_val(table) as u64);
        (weights.sum::<u64>() + tables.sum::<u64>()).div_ceil(self.gate.n_experts() as u64)
    }
}

fn layout_of(weight: &Weight) -> WeightLayout {
    WeightLayout::new(weight.format, weight.rows, weight.columns)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
        Experts::new([gate, up, down], Activation::Silu, RouteWeighting::Output, 2).unwrap()
    }

    /// What a device would have of an op after some writes to its weights and tables.
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

        fn write(&mut self, experts: &Experts, expert: usize, pool: &Experts, place: usize) {
            let mut bytes = vec![0xaa; experts.expert_bytes()];
            experts.write_expert(expert, &mut bytes);
            for part in pool.parts_at(place) {
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
    fn a_pool_that_has_every_expert_at_its_number_has_the_bytes_of_the_tensors() {
        for format in [Format::Q4_0, Format::F16, Format::MXFP4] {
            let experts = experts(format, 1);
            let pool = experts.pool(N_EXPERTS);
            assert!(pool.is_placed() && pool.weights().iter().all(|weight| weight.is_blank()));
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
    fn what_was_arranged_for_the_processor_gives_the_same_bytes() {
        for (format, kernel) in supported_kernels().flat_map(|kernel| [(Format::Q4_0, kernel), (Format::MXFP4, kernel)])
        {
            let stored = experts(format, 1);
            let mut arranged = stored.clone();
            arranged.prepare_cpu(kernel, &Solo);
            for expert in 0..N_EXPERTS {
                let [from_file, from_strips] = [&stored, &arranged].map(|experts| {
                    let mut bytes = vec![0xaa; experts.expert_bytes()];
                    experts.write_expert(expert, &mut bytes);
                    bytes
                });
                assert!(from_file == from_strips, "{format}, {kernel}");
            }
        }
    }

    #[test]
    fn an_expert_takes_the_room_of_one_wherever_it_is() {
        let experts = experts(Format::Q5_0, 1);
        let pool = experts.pool(9);
        let (mut once, mut twice) = (Memory::of(&pool), Memory::of(&pool));
        once.write(&experts, 4, &pool, 7);
        twice.write(&experts, 1, &pool, 7);
        twice.write(&experts, 4, &pool, 7);
        assert_eq!((once.weights, once.tables), (twice.weights, twice.tables), "nothing is left of the first");
        assert!(experts.place_bytes() >= experts.expert_bytes() as u64);
        let of_pool = pool.weights().into_iter().map(|weight| layout_of(weight).bytes()).sum::<u64>();
        assert!(of_pool + 9 * 4 * (2 * 32 + 64) <= 9 * experts.place_bytes() + 100, "{of_pool}");
    }

    #[test]
    fn layers_of_one_shape_share_a_pool_and_others_do_not() {
        assert!(experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q4_0, 2)));
        assert!(!experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q5_0, 1)));
    }
}
