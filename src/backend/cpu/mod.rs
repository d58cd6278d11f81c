//! The CPU backend: a [`PipelineStage`] that runs every op of a graph on a team of threads.
//!
//! The backend has no code per op. Each op has its own kernels ([`Op::run_cpu`]); this module passes it slices of the arena.

pub mod team;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cost::Cost;
use cuelight_shaders::cpu::{ActivationBits, Kernel, SharedMut};
use cuelight_shaders::kv::PositionBytes;
use cuelight_shaders::op::{CpuArgs, InputObserver, Op};
use cuelight_shaders::recurrent::StateCache;
use cuelight_shaders::tuning::Tuning;

use crate::backend::ragged::{OfSequences, RaggedRows, count_rows, node_cost};
use crate::backend::stage::{PipelineStage, StageOutput};
use crate::cancel::LoadCancelled;
use crate::cgroup;
use crate::engine::{CacheUnit, EngineError, EngineLimits, Step, UnitBytes};
use crate::graph::{Graph, MemoryLayout, ValueId};
use crate::profile::Profiler;
use team::ThreadTeam;

/// A model, or a part of one, on the CPU.
pub struct CpuStage {
    segments: Vec<Segment>,
    arena: Vec<f32>,
    scratch: Vec<f32>,
    kv: KvCache,
    states: StateCache,
    kv_position_bytes: Vec<PositionBytes>,
    kernel: Kernel,
    activation_bits: ActivationBits,
    tuning: Tuning,
    team: ThreadTeam,
    rows: RaggedRows,
    /// Sees what the matrices multiply.
    observer: Option<SharedObserver>,
}

/// An observer that the caller reads while an engine shows it what its matrices multiply.
pub type SharedObserver = Arc<Mutex<dyn InputObserver>>;

/// A graph that runs without interruption.
struct Segment {
    graph: Graph,
    layout: MemoryLayout,
    /// Records the time of each op; `None` if ops are not measured.
    profiler: Option<Profiler>,
}

impl CpuStage {
    /// A stage with one segment per graph, for steps within `limits`. Prepares the weights of the graphs for the kernel and
    /// calls `progress` for each op whose weights are ready.
    ///
    /// # Errors
    /// [`LoadCancelled`] when `progress` returns it.
    pub fn new(
        graphs: Vec<Graph>,
        (kv, states): (KvCache, StateCache),
        kernel: Kernel,
        threads: usize,
        limits: &EngineLimits,
        progress: &mut dyn FnMut(&dyn Op) -> Result<(), LoadCancelled>,
    ) -> Result<Self, LoadCancelled> {
        let team = ThreadTeam::new(threads);
        let most = limits.most_rows();
        let (mut scratch_len, mut arena_len) = (0, 0);
        let segment = |mut graph: Graph| {
            graph.prepare_cpu(kernel, &team, progress)?;
            scratch_len = scratch_len.max(graph.scratch_len(kernel, most, limits.context_tokens));
            let layout = MemoryLayout::new(&graph, most);
            arena_len = arena_len.max(layout.arena_len());
            Ok(Segment { layout, profiler: None, graph })
        };
        let segments = graphs.into_iter().map(segment).collect::<Result<Vec<_>, LoadCancelled>>()?;
        let (arena, scratch) = (vec![0.0; arena_len], vec![0.0; scratch_len]);
        let (rows, kv_position_bytes) = (RaggedRows::default(), kv.position_bytes());
        let (activation_bits, tuning) = (ActivationBits::default(), Tuning::default());
        Ok(CpuStage {
            segments,
            arena,
            scratch,
            kv,
            states,
            kv_position_bytes,
            kernel,
            activation_bits,
            tuning,
            team,
            rows,
            observer: None,
        })
    }

    /// Sets the number of bits to which inputs of products are rounded.
    #[must_use]
    pub fn with_activation_bits(self, activation_bits: ActivationBits) -> Self {
        CpuStage { activation_bits, ..self }
    }

    /// Sets what the kernels adapt to the CPU.
    #[must_use]
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        CpuStage { tuning, ..self }
    }

    /// Shows an observer what the matrices multiply.
    #[must_use]
    pub fn with_observer(self, observer: Option<SharedObserver>) -> Self {
        CpuStage { observer, ..self }
    }

    /// Enables the measurement of each op.
    #[must_use]
    pub fn with_profile(mut self) -> Self {
        for segment in &mut self.segments {
            segment.profiler = Some(Profiler::new(&segment.graph));
        }
        self
    }

    fn compute(&mut self, segment: usize, step: &Step) {
        let Segment { graph, layout, profiler } = &mut self.segments[segment];
        let of_sequences = OfSequences::new(step);
        let batch = self.rows.batch(&of_sequences);
        let mut observer = self.observer.as_ref().map(|one| one.lock().unwrap_or_else(PoisonError::into_inner));
        let arena = SharedMut::new(&mut self.arena);
        let place = |value: ValueId| {
            let rows = count_rows(graph.rows(value), &batch);
            (layout.offset(value), rows * graph.width(value))
        };
        for node in graph.nodes() {
            let rows = count_rows(graph.input_rows(node), &batch);
            let (inputs, outputs) = (node.inputs.iter(), node.outputs.iter());
            // SAFETY: the layout does not overlap values that are live at the same time, and ops run one after the other. So the
            // outputs overlap neither each other nor the inputs.
            let (inputs, mut outputs): (Vec<&[f32]>, Vec<&mut [f32]>) = unsafe {
                let read = |(offset, len)| arena.read(offset, len);
                let write = |(offset, len)| arena.slice(offset, len);
                (inputs.map(|value| read(place(*value))).collect(), outputs.map(|value| write(place(*value))).collect())
            };
            let began = profiler.as_ref().map(|_| Instant::now());
            let args = &mut CpuArgs {
                kernel: self.kernel,
                activation_bits: self.activation_bits,
                tuning: self.tuning,
                team: &self.team,
                batch,
                kv: &self.kv,
                states: &self.states,
                rows,
                scratch: &mut self.scratch,
                inputs: &inputs,
                outputs: &mut outputs,
            };
            match &mut observer {
                Some(observer) => node.op.run_observed(args, &mut **observer),
                None => node.op.run_cpu(args),
            }
            if let (Some(profiler), Some(began)) = (&mut *profiler, began) {
                let cost = node_cost(graph, node, self.kernel, batch, &self.kv_position_bytes);
                profiler.record(began, cost);
            }
        }
    }
}

impl PipelineStage for CpuStage {
    fn run(&mut self, segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        self.rows.fill(step);
        let Segment { graph, layout, profiler } = &mut self.segments[segment];
        if let Some(profiler) = profiler {
            profiler.begin(Instant::now());
        }
        for (value, input) in graph.inputs().iter().zip(inputs) {
            let start = layout.offset(*value);
            self.arena[start..start + input.len()].copy_from_slice(input);
        }
        self.compute(segment, step);
        let Segment { graph, layout, profiler } = &mut self.segments[segment];
        let of_sequences = OfSequences::new(step);
        let batch = self.rows.batch(&of_sequences);
        let read = |value: &ValueId| {
            let (start, rows) = (layout.offset(*value), count_rows(graph.rows(*value), &batch));
            self.arena[start..start + rows * graph.width(*value)].to_vec()
        };
        let (hidden, values): (Vec<ValueId>, _) =
            graph.outputs().into_iter().partition(|value| Some(*value) == graph.hidden());
        let hidden = hidden.first().map(read).unwrap_or_default();
        let values = values.iter().map(read).collect();
        // The caller samples tokens: it can read the logits in host memory.
        let sampled = Vec::new();
        Ok(StageOutput { values, hidden, sampled, ops: profiler.as_mut().map(Profiler::finish).unwrap_or_default() })
    }

    fn segments(&self) -> usize {
        self.segments.len()
    }

    fn cost(&self, segment: usize, step: &Step) -> Cost {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        let of_sequences = OfSequences::new(step);
        let batch = rows.batch(&of_sequences);
        let graph = &self.segments[segment].graph;
        let cost = |node| node_cost(graph, node, self.kernel, batch, &self.kv_position_bytes);
        graph.nodes().iter().map(cost).sum()
    }

    fn unit_bytes(&self) -> UnitBytes {
        let state: u64 = self.states.slot_bytes().iter().sum();
        UnitBytes { block: self.kv.block_bytes(), state: state as usize }
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        for (unit, out) in copies {
            match unit {
                CacheUnit::Block(block) => self.kv.read_block(*block, out),
                CacheUnit::State(slot) => self.states.read_slot(*slot, out),
            }
        }
        Ok(())
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        for (unit, content) in contents {
            match unit {
                CacheUnit::Block(block) => self.kv.write_block(*block, content),
                CacheUnit::State(slot) => self.states.write_slot(*slot, content),
            }
        }
        Ok(())
    }
}

/// The description of an engine's kernel and threads in reports.
#[must_use]
pub fn describe(kernel: Kernel, bits: ActivationBits, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    let in_bits = if bits == ActivationBits::Eight && kernel.is_integer() { " in 8 bits" } else { "" };
    format!("cpu ({kernel}{in_bits}, {threads} thread{plural})")
}

/// The default number of threads: all that the process may use, by its set of CPUs and by the limits on their time.
#[must_use]
pub fn default_threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    threads_within(cpus, cgroup::cpu_limit(Path::new("/")).map(|limit| limit.cpus))
}

/// Whole threads for a limit on CPU time: one more thread than the limit would stop all of them for a part of the time.
fn threads_within(cpus: usize, limit: Option<f64>) -> usize {
    limit.map_or(cpus, |limit| cpus.min(limit.max(1.0) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_stay_within_the_limit_on_cpu_time() {
        let threads = [None, Some(8.0), Some(2.9), Some(0.5)].map(|limit| threads_within(4, limit));
        assert_eq!(threads, [4, 4, 2, 1]);
    }
}
