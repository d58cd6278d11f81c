//! The CPU backend: a [`Stage`] that runs every op of a graph on a team of threads.
//!
//! It has no code per op: an op brings its own kernels ([`Op::run_cpu`]), and this
//! module gives it its slices of the arena.

pub mod team;

use std::time::Instant;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cost::Cost;
use cuelight_shaders::cpu::{ActivationBits, Kernel, SharedMut};
use cuelight_shaders::op::{CpuArgs, Op};

use crate::backend::ragged::{RaggedRows, count_rows, node_cost};
use crate::backend::stage::{Stage, StageOutput};
use crate::engine::{EngineError, EngineLimits, Step};
use crate::graph::{Graph, MemoryLayout, ValueId};
use crate::profile::Profiler;
use team::ThreadTeam;

/// A model, or a part of one, on the CPU.
pub struct CpuStage {
    pieces: Vec<Piece>,
    arena: Vec<f32>,
    scratch: Vec<f32>,
    kv: KvCache,
    kv_position_bytes: Vec<u64>,
    kernel: Kernel,
    activation_bits: ActivationBits,
    team: ThreadTeam,
    rows: RaggedRows,
}

/// A graph that runs without interruption.
struct Piece {
    graph: Graph,
    layout: MemoryLayout,
    /// Notes what each op takes, when somebody wants to know.
    profiler: Option<Profiler>,
}

impl CpuStage {
    /// A stage of these pieces for steps within `limits`; arranges the weights of the graphs for its kernel, and tells
    /// `progress` of each op whose weights are ready.
    ///
    /// # Panics
    /// When a graph gives nothing.
    #[must_use]
    pub fn new(
        graphs: Vec<Graph>,
        kv: KvCache,
        kernel: Kernel,
        threads: usize,
        limits: &EngineLimits,
        progress: &mut dyn FnMut(&dyn Op),
    ) -> Self {
        let team = ThreadTeam::new(threads);
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let (mut scratch_len, mut arena_len) = (0, 0);
        let piece = |mut graph: Graph| {
            assert!(!graph.outputs().is_empty(), "the graph gives nothing");
            graph.prepare_cpu(kernel, &team, progress);
            scratch_len = scratch_len.max(graph.scratch_len(kernel, rows, logits_rows, limits.context_tokens));
            let layout = MemoryLayout::new(&graph, rows, logits_rows);
            arena_len = arena_len.max(layout.arena_len());
            Piece { layout, profiler: None, graph }
        };
        let pieces = graphs.into_iter().map(piece).collect();
        let (arena, scratch) = (vec![0.0; arena_len], vec![0.0; scratch_len]);
        let (rows, kv_position_bytes) = (RaggedRows::default(), kv.position_bytes());
        let activation_bits = ActivationBits::default();
        CpuStage { pieces, arena, scratch, kv, kv_position_bytes, kernel, activation_bits, team, rows }
    }

    /// The same stage, which rounds inputs of products to so many bits.
    #[must_use]
    pub fn with_activation_bits(self, activation_bits: ActivationBits) -> Self {
        CpuStage { activation_bits, ..self }
    }

    /// The same stage, which measures each op.
    #[must_use]
    pub fn with_profile(mut self) -> Self {
        for piece in &mut self.pieces {
            piece.profiler = Some(Profiler::new(&piece.graph));
        }
        self
    }

    fn compute(&mut self, piece: usize, step: &Step) {
        let Piece { graph, layout, profiler } = &mut self.pieces[piece];
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let arena = SharedMut::new(&mut self.arena);
        let slice = |value: ValueId| {
            let rows = count_rows(graph.rows(value), &batch);
            // SAFETY: the layout keeps values that live at the same time apart, and ops run one after the other.
            unsafe { arena.slice(layout.offset(value), rows * graph.width(value)) }
        };
        for node in graph.nodes() {
            let rows = count_rows(graph.input_rows(node), &batch);
            let inputs: Vec<&[f32]> = node.inputs.iter().map(|input| &*slice(*input)).collect();
            let mut outputs: Vec<&mut [f32]> = node.outputs.iter().map(|output| slice(*output)).collect();
            let began = profiler.as_ref().map(|_| Instant::now());
            node.op.run_cpu(&mut CpuArgs {
                kernel: self.kernel,
                activation_bits: self.activation_bits,
                team: &self.team,
                batch,
                kv: &self.kv,
                rows,
                scratch: &mut self.scratch,
                inputs: &inputs,
                outputs: &mut outputs,
            });
            if let (Some(profiler), Some(began)) = (&mut *profiler, began) {
                let cost = node_cost(graph, node, self.kernel, batch, &self.kv_position_bytes);
                profiler.note(began, cost);
            }
        }
    }
}

impl Stage for CpuStage {
    fn run(&mut self, piece: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        self.rows.fill(step);
        let Piece { graph, layout, profiler } = &mut self.pieces[piece];
        if let Some(profiler) = profiler {
            profiler.begin(Instant::now());
        }
        for (value, input) in graph.inputs().iter().zip(inputs) {
            let start = layout.offset(*value);
            self.arena[start..start + input.len()].copy_from_slice(input);
        }
        self.compute(piece, step);
        let Piece { graph, layout, profiler } = &mut self.pieces[piece];
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let read = |value: &ValueId| {
            let (start, rows) = (layout.offset(*value), count_rows(graph.rows(*value), &batch));
            self.arena[start..start + rows * graph.width(*value)].to_vec()
        };
        let values = graph.outputs().iter().map(read).collect();
        // Tokens are chosen by whoever reads the logits: they lie in the same memory.
        let chosen = Vec::new();
        Ok(StageOutput { values, chosen, ops: profiler.as_mut().map(Profiler::finish).unwrap_or_default() })
    }

    fn cost(&self, step: &Step) -> Cost {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        let block_tables = step.block_tables();
        let batch = rows.batch(&block_tables);
        let of_piece = |Piece { graph, .. }: &Piece| {
            let cost = |node| node_cost(graph, node, self.kernel, batch, &self.kv_position_bytes);
            graph.nodes().iter().map(cost).sum::<Cost>()
        };
        self.pieces.iter().map(of_piece).sum()
    }
}

/// What an engine's threads and kernel are called in reports.
#[must_use]
pub fn describe(kernel: Kernel, bits: ActivationBits, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    let in_bits = if bits == ActivationBits::Eight && kernel.is_integer() { " in 8 bits" } else { "" };
    format!("cpu ({kernel}{in_bits}, {threads} thread{plural})")
}

/// The threads to use when nobody says: all that the process may use.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
