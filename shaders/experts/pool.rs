//! Room on a device for some experts of several layers, which come and go.
//!
//! A pool is an [`Experts`] op with *places*: tensors that have room for so many experts, and routes that say where each one is. Its
//! tensors have no bytes of their own; an expert is packed for the device ([`PackedExpert`]) and written to a place there.

use std::sync::Arc;

use super::{ExpertMatrix, Experts};
use crate::gpu::weight::WeightLayout;
use crate::op::Op;
use crate::weight::Weight;

/// An expert as a device takes it: the same bytes at any place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedExpert {
    /// For each of the op's tensors the planes of the expert's rows.
    weights: Vec<[Vec<u8>; 4]>,
    /// For each of the op's tables what the expert has of it.
    tables: Vec<Vec<u8>>,
}

/// What of an op bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One of its weights, by its number.
    Weight(usize),
    /// One of its tables, by its number.
    Table(usize),
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

    /// Packs one of the experts for a device.
    ///
    /// # Panics
    /// When there is no such expert, or these are a pool.
    #[must_use]
    pub fn pack(&self, expert: usize) -> PackedExpert {
        let of_weight = |weight: &Weight| {
            let rows = weight.rows / self.n_experts;
            layout_of(weight).planes(weight, expert * rows..(expert + 1) * rows)
        };
        let of_table = |table: &[f32]| {
            let len = table.len() / self.n_experts;
            table[expert * len..(expert + 1) * len].iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        PackedExpert {
            weights: self.weights().into_iter().map(of_weight).collect(),
            tables: self.gpu_tables().into_iter().map(of_table).collect(),
        }
    }

    /// Bytes that a place of a pool of these takes on a device.
    #[must_use]
    pub fn place_bytes(&self) -> u64 {
        let weights = self.weights().into_iter().map(|weight| layout_of(weight).bytes());
        let tables = self.gpu_tables().into_iter().map(|table| size_of_val(table) as u64);
        (weights.sum::<u64>() + tables.sum::<u64>()).div_ceil(self.gate.n_experts() as u64)
    }
}

impl PackedExpert {
    /// What to write where, for the expert to be at a place of a pool: bytes, and where in the weight or table they start.
    pub fn writes<'a>(&'a self, pool: &Experts, place: usize) -> Vec<(Target, u64, &'a [u8])> {
        let mut writes = Vec::new();
        for (index, (planes, weight)) in self.weights.iter().zip(pool.weights()).enumerate() {
            let (layout, rows) = (layout_of(weight), weight.rows / pool.gate.n_experts());
            let filled = planes.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty());
            writes.extend(filled.map(|(plane, bytes)| {
                (Target::Weight(index), layout.plane_start(plane, place * rows), bytes.as_slice())
            }));
        }
        let tables = self.tables.iter().enumerate();
        writes.extend(tables.map(|(index, bytes)| (Target::Table(index), (place * bytes.len()) as u64, &bytes[..])));
        writes
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let weights = self.weights.iter().flatten();
        weights.chain(&self.tables).map(|bytes| bytes.len() as u64).sum()
    }
}

fn layout_of(weight: &Weight) -> WeightLayout {
    WeightLayout::new(weight.format, weight.rows, weight.columns)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::experts::RouteWeighting;
    use crate::glu::Activation;
    use crate::quant::{Format, random};

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

        fn write(&mut self, packed: &PackedExpert, pool: &Experts, place: usize) {
            for (target, start, bytes) in packed.writes(pool, place) {
                let memory = match target {
                    Target::Weight(index) => &mut self.weights[index],
                    Target::Table(index) => &mut self.tables[index],
                };
                memory[start as usize..][..bytes.len()].copy_from_slice(bytes);
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
                memory.write(&experts.pack(expert), &pool, expert);
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
    fn an_expert_takes_the_room_of_one_wherever_it_is() {
        let experts = experts(Format::Q5_0, 1);
        let pool = experts.pool(9);
        let (mut once, mut twice) = (Memory::of(&pool), Memory::of(&pool));
        once.write(&experts.pack(4), &pool, 7);
        twice.write(&experts.pack(1), &pool, 7);
        twice.write(&experts.pack(4), &pool, 7);
        assert_eq!((once.weights, once.tables), (twice.weights, twice.tables), "nothing is left of the first");
        assert!(experts.place_bytes() >= experts.pack(0).bytes());
        let of_pool = pool.weights().into_iter().map(|weight| layout_of(weight).bytes()).sum::<u64>();
        assert!(of_pool + 9 * 4 * (2 * 32 + 64) <= 9 * experts.place_bytes() + 100, "{of_pool}");
    }

    #[test]
    fn layers_of_one_shape_share_a_pool_and_others_do_not() {
        assert!(experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q4_0, 2)));
        assert!(!experts(Format::Q4_0, 1).shares_pool(&experts(Format::Q5_0, 1)));
    }
}
