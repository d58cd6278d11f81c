//! The CPU backend: an [`Engine`] that runs every op of a graph on a team of threads.
//!
//! It has no code per op: an op brings its own kernels ([`Op::run_cpu`]), and this
//! module gives it its slices of the arena.

pub mod team;

use std::time::Instant;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cost::Cost;
use cuelight_shaders::cpu::{Kernel, SharedMut};
use cuelight_shaders::op::{CpuArgs, Op};

use crate::backend::ragged::{RaggedRows, count_rows, node_cost, validate};
use crate::engine::{Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepOutput};
use crate::graph::{Graph, MemoryLayout, ValueId};
use crate::profile::Profiler;
use team::ThreadTeam;

/// A model on the CPU.
pub struct CpuEngine {
    graph: Graph,
    layout: MemoryLayout,
    arena: Vec<f32>,
    scratch: Vec<f32>,
    kv: KvCache,
    kv_position_bytes: Vec<u64>,
    kernel: Kernel,
    team: ThreadTeam,
    limits: EngineLimits,
    rows: RaggedRows,
    /// Notes what each op takes, when somebody wants to know.
    profiler: Option<Profiler>,
}

impl CpuEngine {
    /// An engine for steps within `limits`; arranges the weights of the graph for its kernel, and tells `progress` of each
    /// op whose weights are ready.
    ///
    /// # Panics
    /// When the graph has no output.
    #[must_use]
    pub fn new(
        mut graph: Graph,
        kv: KvCache,
        kernel: Kernel,
        threads: usize,
        limits: EngineLimits,
        progress: &mut dyn FnMut(&dyn Op),
    ) -> Self {
        assert!(graph.output().is_some(), "the graph has no ops");
        let team = ThreadTeam::new(threads);
        graph.prepare_cpu(kernel, &team, progress);
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let scratch = vec![0.0; graph.scratch_len(kernel, rows, logits_rows, limits.context_tokens)];
        let layout = MemoryLayout::new(&graph, limits.max_batched_tokens, limits.max_logits_rows);
        let arena = vec![0.0; layout.arena_len()];
        let rows = RaggedRows::default();
        let kv_position_bytes = kv.position_bytes();
        CpuEngine { layout, arena, scratch, kv, kv_position_bytes, kernel, team, limits, rows, profiler: None, graph }
    }

    /// The same engine, which measures each op.
    #[must_use]
    pub fn with_profile(mut self) -> Self {
        self.profiler = Some(Profiler::new(&self.graph));
        self
    }

    fn run(&mut self, step: &Step) {
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let arena = SharedMut::new(&mut self.arena);
        let slice = |value: ValueId| {
            let rows = count_rows(self.graph.rows(value), &batch);
            // SAFETY: the layout keeps values that live at the same time apart, and ops run one after the other.
            unsafe { arena.slice(self.layout.offset(value), rows * self.graph.width(value)) }
        };
        for node in self.graph.nodes() {
            let rows = count_rows(self.graph.input_rows(node), &batch);
            let inputs: Vec<&[f32]> = node.inputs.iter().map(|input| &*slice(*input)).collect();
            let mut outputs: Vec<&mut [f32]> = node.outputs.iter().map(|output| slice(*output)).collect();
            let began = self.profiler.as_ref().map(|_| Instant::now());
            node.op.run_cpu(&mut CpuArgs {
                kernel: self.kernel,
                team: &self.team,
                batch,
                kv: &self.kv,
                rows,
                scratch: &mut self.scratch,
                inputs: &inputs,
                outputs: &mut outputs,
            });
            if let (Some(profiler), Some(began)) = (&mut self.profiler, began) {
                let cost = node_cost(&self.graph, node, self.kernel, batch, &self.kv_position_bytes);
                profiler.note(began, cost);
            }
        }
    }
}

impl Engine for CpuEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let started = Instant::now();
        validate(&step, &self.limits).map_err(|reason| EngineError::InvalidStep { step: step.id, reason })?;
        self.rows.fill(&step);
        if let Some(profiler) = &mut self.profiler {
            profiler.begin(started);
        }
        if !self.rows.tokens.is_empty() {
            self.run(&step);
        }
        let logits = match self.graph.output() {
            Some(output) => {
                let start = self.layout.offset(output);
                self.arena[start..start + self.rows.selected.len() * self.limits.vocab_size].to_vec()
            }
            None => Vec::new(),
        };
        let ops = self.profiler.as_mut().map(Profiler::finish).unwrap_or_default();
        Ok(Progress::Done(StepOutput { id: step.id, logits, elapsed: started.elapsed(), ops }))
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        let block_tables = step.block_tables();
        let batch = rows.batch(&block_tables);
        let cost = |node| node_cost(&self.graph, node, self.kernel, batch, &self.kv_position_bytes);
        Some(self.graph.nodes().iter().map(cost).sum())
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let reason = "no step of this engine waits for experts".to_owned();
        Err(EngineError::InvalidStep { step: result.step, reason })
    }
}

/// What an engine's threads and kernel are called in reports.
#[must_use]
pub fn describe(kernel: Kernel, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu ({kernel}, {threads} thread{plural})")
}

/// The threads to use when nobody says: all that the process may use.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
