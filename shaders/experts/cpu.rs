//! Experts on the CPU: group the rows by expert, then compute the products of each expert for all of its rows at once.

use std::ops::Range;

use super::grouping::Grouping;
use super::low_rank::{Changes, Input};
use super::{ExpertActivation, ExpertMatrix, Experts, RouteWeighting};
use crate::activate::activate_in_place;
use crate::cpu::{ActivationBits, Kernel, SharedMut, Team, for_each_chunk};
use crate::glu::glu_row_in_place;
use crate::lora::adapter::AdapterUse;
use crate::matmul::integer::activations::{self, Panels, Sources};
use crate::matmul::{TASK_OUTPUTS, Task};
use crate::op::{InputObserver, MatrixInput};
use crate::per_kernel;
use crate::tuning::Tuning;
use crate::weight::Weight;

/// Rows and their routes.
#[derive(Debug, Clone, Copy)]
pub struct ExpertRows<'a> {
    /// [rows, hidden_size]
    pub x: &'a [f32],
    /// [rows, 2 top_k], or with slots [rows, 3 top_k]: expert numbers, weights, slots.
    pub routes: &'a [f32],
    /// The number of rows.
    pub rows: usize,
    /// The adapter of each row, or empty if no row has one.
    pub adapters: &'a [Option<&'a AdapterUse>],
}

/// The most pairs of a row and an expert that are computed together. It limits the scratch memory of long prefills.
const MAX_PAIRS: usize = 8192;

/// The number of rows that have at most [`MAX_PAIRS`] pairs.
fn rows_at_once(experts: &Experts) -> usize {
    (MAX_PAIRS / experts.top_k).max(1)
}

/// The sections of the scratch memory, in values.
struct ScratchLayout {
    gathered: usize,
    rounded: usize,
    hidden: usize,
    /// The products of up, where those of gate are the hidden layer.
    up: usize,
    output: usize,
    /// The first products of the changes of adapters.
    low_rank: usize,
}

impl ScratchLayout {
    fn new(experts: &Experts, kernel: Kernel, pairs: usize) -> Self {
        let (hidden, intermediate) = (experts.hidden_size(), experts.intermediate_size());
        let gathers = experts.gathers(kernel);
        let rounds = |matrix: &ExpertMatrix| matrix.is_integer(kernel);
        let rounded = |matrix: &ExpertMatrix| {
            if rounds(matrix) { activations::scratch_len(pairs, matrix.columns()) } else { 0 }
        };
        ScratchLayout {
            gathered: if gathers { pairs * hidden } else { 0 },
            rounded: experts.matrices().map(rounded).max().unwrap_or(0),
            hidden: pairs * intermediate,
            up: if experts.gate.is_some() { pairs * intermediate } else { 0 },
            output: pairs * hidden,
            low_rank: pairs * experts.max_rank(),
        }
    }

    fn total(&self) -> usize {
        self.gathered + self.rounded + self.hidden + self.up + self.output + self.low_rank
    }

    /// The sections of scratch memory of this layout.
    fn split<'s>(&self, scratch: &'s mut [f32]) -> Sections<'s> {
        let (gathered, rest) = scratch.split_at_mut(self.gathered);
        let (rounded, rest) = rest.split_at_mut(self.rounded);
        let (hidden, rest) = rest.split_at_mut(self.hidden);
        let (up, rest) = rest.split_at_mut(self.up);
        let (output, rest) = rest.split_at_mut(self.output);
        Sections { gathered, rounded, hidden, up, output, low_rank: &mut rest[..self.low_rank] }
    }
}

/// Scratch memory by the sections of [`ScratchLayout`].
struct Sections<'s> {
    gathered: &'s mut [f32],
    rounded: &'s mut [f32],
    hidden: &'s mut [f32],
    up: &'s mut [f32],
    output: &'s mut [f32],
    low_rank: &'s mut [f32],
}

/// Scratch memory for `rows` rows, in float32 values.
pub(super) fn scratch_len(experts: &Experts, kernel: Kernel, rows: usize) -> usize {
    ScratchLayout::new(experts, kernel, rows.min(rows_at_once(experts)) * experts.top_k).total()
}

impl Experts {
    /// Whether the rows of each expert are copied next to each other, which float32 products require.
    fn gathers(&self, kernel: Kernel) -> bool {
        let floats = self.gate.iter().chain([&self.up]).any(|matrix| !matrix.is_integer(kernel));
        floats || self.weighs_input()
    }

    /// Whether the route weight applies to the input, so that each expert has another one.
    fn weighs_input(&self) -> bool {
        self.weighting == RouteWeighting::Input
    }

    /// Computes the outputs of the rows, [rows, hidden_size]. The weights must be prepared for the kernel, and
    /// `scratch` must have the length that [`Op::scratch_len`](crate::op::Op::scratch_len) returns.
    ///
    /// # Panics
    /// When the CPU does not support the kernel, a slice is too short, or the expert of a route does not exist.
    pub fn compute(
        &self,
        (kernel, bits, tuning): (Kernel, ActivationBits, Tuning),
        team: &dyn Team,
        rows: ExpertRows<'_>,
        scratch: &mut [f32],
        output: &mut [f32],
    ) {
        self.compute_observed((kernel, bits, tuning), team, rows, (scratch, output), None);
    }

    /// As [`Self::compute`] with scratch memory and output, and shows an observer what the matrices multiply.
    pub(super) fn compute_observed(
        &self,
        (kernel, bits, tuning): (Kernel, ActivationBits, Tuning),
        team: &dyn Team,
        rows: ExpertRows<'_>,
        (scratch, output): (&mut [f32], &mut [f32]),
        mut observer: Option<&mut dyn InputObserver>,
    ) {
        assert!(kernel.is_supported(), "this CPU does not support the {kernel} kernel");
        let (hidden, routes_width) = (self.hidden_size(), self.routes_width());
        assert_eq!(rows.x.len(), rows.rows * hidden, "input of the experts");
        assert_eq!(rows.routes.len(), rows.rows * routes_width, "routes of the experts");
        assert_eq!(output.len(), rows.rows * hidden, "output of the experts");
        let step = rows_at_once(self);
        let chunks = rows.x.chunks(step * hidden).zip(rows.routes.chunks(step * routes_width));
        let adapters = rows.adapters.chunks(step).chain(std::iter::repeat(&[][..]));
        for (((x, routes), output), adapters) in chunks.zip(output.chunks_mut(step * hidden)).zip(adapters) {
            self.compute_chunk(
                (kernel, bits, tuning),
                team,
                ExpertRows { x, routes, rows: x.len() / hidden, adapters },
                (&mut *scratch, output),
                &mut observer,
            );
        }
    }

    fn compute_chunk(
        &self,
        (kernel, bits, tuning): (Kernel, ActivationBits, Tuning),
        team: &dyn Team,
        rows: ExpertRows<'_>,
        (scratch, output): (&mut [f32], &mut [f32]),
        observer: &mut Option<&mut dyn InputObserver>,
    ) {
        let (hidden, intermediate) = (self.hidden_size(), self.intermediate_size());
        let grouping = Grouping::new(self.slots(rows.routes), self.up.n_experts());
        let pairs = grouping.routes.len();
        let sections = ScratchLayout::new(self, kernel, pairs).split(scratch);
        let Sections { gathered, rounded, hidden: activated, up, output: down, low_rank: h } = sections;
        self.gather(team, rows, &grouping, gathered);
        let products = Products { kernel, bits, tuning, team, grouping: &grouping };
        // A row is rounded once for all of its experts, unless its input is weighted for each expert.
        let row = |row: usize| &rows.x[row * hidden..(row + 1) * hidden];
        let pair = |pair: usize| &gathered[pair * hidden..(pair + 1) * hidden];
        let pairs_of_row = |row: usize, pairs: &mut Vec<usize>| {
            pairs.extend(grouping.pair_of_route[row * self.top_k..(row + 1) * self.top_k].iter().flatten());
        };
        let sources = match self.weighs_input() {
            false => Sources { count: rows.rows, input: &row, copies: &pairs_of_row },
            true => Sources::each_once(pairs, &pair),
        };
        let first: Vec<&ExpertMatrix> = self.gate.iter().chain([&self.up]).collect();
        if let Some(observer) = observer {
            let of_row = |at: usize| row(grouping.routes[at] / self.top_k);
            let input = |at: usize| if self.weighs_input() { pair(at) } else { of_row(at) };
            show(&first, &grouping, &input, &mut **observer);
        }
        let panels = products.round(&first, sources, rounded);
        match &self.gate {
            Some(gate) => products.run([(gate, &mut *activated), (&self.up, &mut *up)], gathered, panels),
            None => products.run([(&self.up, &mut *activated)], gathered, panels),
        }
        let has_changes = !self.adapters.is_empty() && !rows.adapters.is_empty();
        let changes = Changes { kernel, team, grouping: &grouping, top_k: self.top_k, adapters: rows.adapters };
        let input = if self.weighs_input() { Input::Pairs(gathered) } else { Input::Rows(rows.x) };
        if has_changes {
            changes.add(&self.adapters[0], input, activated, h);
        }
        if has_changes && self.gate.is_some() {
            changes.add(&self.adapters[1], input, up, h);
        }
        self.activate((kernel, team), activated, up);
        let activated: &[f32] = activated;
        let pair = |pair: usize| &activated[pair * intermediate..][..intermediate];
        if let Some(observer) = observer {
            show(&[&self.down], &grouping, &pair, &mut **observer);
        }
        let panels = products.round(&[&self.down], Sources::each_once(pairs, &pair), rounded);
        products.run([(&self.down, &mut *down)], activated, panels);
        if let Some(target) = self.adapters.last().filter(|_| has_changes) {
            changes.add(target, Input::Pairs(activated), down, h);
        }
        self.add_up(kernel, team, rows, &grouping, down, output);
    }

    /// Applies the activation to the hidden layer of each pair, [pairs, intermediate_size]. With gates that holds their
    /// products, and `up` the others.
    fn activate(&self, (kernel, team): (Kernel, &dyn Team), hidden: &mut [f32], up: &[f32]) {
        let width = self.intermediate_size();
        for_each_chunk(team, hidden, width, &|pair, hidden| match self.activation {
            ExpertActivation::Gated(function) => {
                glu_row_in_place(kernel, function, hidden, &up[pair * width..][..width]);
            }
            ExpertActivation::Ungated(function) => activate_in_place(kernel, function, hidden),
        });
    }

    /// For each route the slot of its expert in the tensors; `None` where the expert is computed elsewhere.
    fn slots<'r>(&self, routes: &'r [f32]) -> impl Iterator<Item = Option<usize>> + use<'r> {
        let (width, top_k, uses_slots) = (self.routes_width(), self.top_k, self.uses_slots());
        routes.chunks_exact(width).flat_map(move |row| {
            let (experts, rest) = row.split_at(top_k);
            let slots = if uses_slots { &rest[top_k..] } else { experts };
            experts.iter().zip(slots).map(|(expert, slot)| (*expert >= 0.0).then_some(*slot as usize))
        })
    }

    /// The weight of the `k`-th route of a row.
    fn route_weight(&self, routes: &[f32], row: usize, k: usize) -> f32 {
        routes[row * self.routes_width() + self.top_k + k]
    }

    /// The experts in these routes, ascending and without duplicates.
    #[must_use]
    pub fn used_by(&self, routes: &[f32]) -> Vec<usize> {
        let mut is_used = vec![false; self.up.n_experts()];
        self.slots(routes).flatten().for_each(|slot| is_used[slot] = true);
        (0..is_used.len()).filter(|expert| is_used[*expert]).collect()
    }

    /// The matrices of the given experts, one expert after the other.
    #[must_use]
    pub fn weights_of(&self, experts: &[usize]) -> Vec<Weight> {
        experts.iter().flat_map(|expert| self.matrices().map(|matrix| matrix.expert(*expert).clone())).collect()
    }

    /// Starts reading the weights of the given experts if they are left in their file. All reads start before any is
    /// awaited.
    pub fn ask_for(&self, experts: &[usize], team: &dyn Team) {
        let matrices: Vec<&ExpertMatrix> = self.matrices().collect();
        let requests = if self.is_left_in_file() { matrices.len() * experts.len() } else { 0 };
        team.for_each(requests, &|request| {
            matrices[request / experts.len()].expert(experts[request % experts.len()]).prefetch();
        });
    }

    /// Copies the row of each pair, multiplied by the route weight where that applies to the input.
    fn gather(&self, team: &dyn Team, rows: ExpertRows<'_>, grouping: &Grouping, gathered: &mut [f32]) {
        let hidden = self.hidden_size();
        for_each_chunk(team, gathered, hidden, &|pair, gathered| {
            let (row, k) = (grouping.routes[pair] / self.top_k, grouping.routes[pair] % self.top_k);
            let weight = match self.weighting {
                RouteWeighting::Input => self.route_weight(rows.routes, row, k),
                RouteWeighting::Output => 1.0,
            };
            for (gathered, x) in gathered.iter_mut().zip(&rows.x[row * hidden..]) {
                *gathered = x * weight;
            }
        });
    }

    /// Adds the results of a row's experts, in the order of its routes.
    fn add_up(
        &self,
        kernel: Kernel,
        team: &dyn Team,
        rows: ExpertRows<'_>,
        grouping: &Grouping,
        down: &[f32],
        output: &mut [f32],
    ) {
        let hidden = self.hidden_size();
        for_each_chunk(team, output, hidden, &|row, output| {
            output.fill(0.0);
            for k in 0..self.top_k {
                let Some(pair) = grouping.pair_of_route[row * self.top_k + k] else { continue };
                let weight = match self.weighting {
                    RouteWeighting::Output => self.route_weight(rows.routes, row, k),
                    RouteWeighting::Input => 1.0,
                };
                add_weighted(kernel, &down[pair * hidden..(pair + 1) * hidden], weight, output);
            }
        });
    }
}

/// Shows an observer the input of each pair, which some matrices of its expert multiply.
fn show<'r>(
    matrices: &[&ExpertMatrix],
    grouping: &Grouping,
    input: &dyn Fn(usize) -> &'r [f32],
    observer: &mut dyn InputObserver,
) {
    let mut matrices = matrices.to_vec();
    // Both matrices of one tensor have the same input.
    matrices.dedup_by_key(|matrix| matrix.tensor().name.clone());
    for group in &grouping.groups {
        for (pair, matrix) in group.pairs.clone().flat_map(|pair| matrices.iter().map(move |matrix| (pair, matrix))) {
            observer.observe(MatrixInput {
                tensor: matrix.tensor().tensor(),
                matrix: group.expert,
                matrices: matrix.n_experts(),
                columns: matrix.columns(),
                rows: input(pair),
            });
        }
    }
}

/// Products of the rows of each expert with its matrices.
struct Products<'a> {
    kernel: Kernel,
    bits: ActivationBits,
    tuning: Tuning,
    team: &'a dyn Team,
    grouping: &'a Grouping,
}

/// A range of the outputs of one expert's matrix.
struct OutputRange {
    matrix: usize,
    group: usize,
    outputs: Range<usize>,
    cost: usize,
}

impl Products<'_> {
    /// Rounds the rows of the pairs for the integer kernels; `None` if no matrix uses one.
    fn round<'s>(
        &self,
        matrices: &[&ExpertMatrix],
        sources: Sources<'_>,
        scratch: &'s mut [f32],
    ) -> Option<Panels<'s>> {
        if !matrices.iter().any(|matrix| matrix.is_integer(self.kernel)) {
            return None;
        }
        let (pairs, columns) = (self.grouping.routes.len(), matrices[0].columns());
        let group_of = |pair| self.grouping.group_of(pair);
        Some(Panels::round_groups(self.kernel, self.bits, self.team, (pairs, columns), sources, &group_of, scratch))
    }

    /// Computes the products of all matrices, each into its output [pairs, outputs].
    fn run<const N: usize>(
        &self,
        matrices: [(&ExpertMatrix, &mut [f32]); N],
        input: &[f32],
        panels: Option<Panels<'_>>,
    ) {
        let mut outputs: Vec<SharedMut<'_, f32>> = Vec::with_capacity(N * self.grouping.groups.len());
        let matrices = matrices.map(|(matrix, mut output)| {
            for group in &self.grouping.groups {
                let (of_group, rest) = output.split_at_mut(group.pairs.len() * matrix.outputs());
                outputs.push(SharedMut::new(of_group));
                output = rest;
            }
            matrix
        });
        let ranges = self.split(&matrices);
        self.team.for_each(ranges.len(), &|index| {
            let OutputRange { matrix, group, outputs: range, .. } = &ranges[index];
            let output = &outputs[matrix * self.grouping.groups.len() + group];
            let (matrix, group) = (matrices[*matrix], &self.grouping.groups[*group]);
            let columns = matrix.columns();
            let integers = matrix.packed(group.expert).zip(panels);
            assert!(integers.is_some() || !matrix.is_integer(self.kernel), "experts: not prepared for {}", self.kernel);
            let input = match integers {
                Some(_) => &[],
                None => &input[group.pairs.start * columns..group.pairs.end * columns],
            };
            let task = Task {
                weight: matrix.expert(group.expert),
                factor: matrix.expert_factor(group.expert),
                bias: matrix.expert_bias(group.expert),
                outputs: range.clone(),
                input,
                integers: integers.map(|(packed, panels)| (packed, panels.of_group(group.pairs.clone()))),
                rounded: None,
                rows: group.pairs.len(),
                tuning: self.tuning,
                output,
            };
            // SAFETY: the CPU supports the kernel, as `compute_observed` asserts, and the tasks of an expert have disjoint outputs.
            unsafe { task.run(self.kernel) };
        });
    }

    /// Splits the products into ranges of about equal cost, a few for each thread, the most expensive first.
    fn split(&self, matrices: &[&ExpertMatrix]) -> Vec<OutputRange> {
        const RANGES_PER_THREAD: usize = 8;
        // Up to this many rows the time is that of reading the weights; from there on it grows with the rows.
        const ROWS_WHILE_READ: usize = 16;
        const LEAST_COST: usize = 32 * 1024;
        let groups = &self.grouping.groups;
        let cost_of_output = |matrix: &ExpertMatrix, pairs: usize| matrix.columns() * pairs.div_ceil(ROWS_WHILE_READ);
        let of_groups = |matrix: &&ExpertMatrix| -> usize {
            groups.iter().map(|group| cost_of_output(matrix, group.pairs.len()) * matrix.outputs()).sum()
        };
        let total: usize = matrices.iter().map(of_groups).sum();
        let fair = (total / (self.team.threads() * RANGES_PER_THREAD)).max(LEAST_COST);
        let mut ranges = Vec::new();
        for (number, matrix) in matrices.iter().enumerate() {
            for (group_number, group) in groups.iter().enumerate() {
                let cost = cost_of_output(matrix, group.pairs.len()).max(1);
                let step = (fair / cost).max(1).next_multiple_of(TASK_OUTPUTS);
                for start in (0..matrix.outputs()).step_by(step) {
                    let outputs = start..matrix.outputs().min(start + step);
                    ranges.push(OutputRange {
                        matrix: number,
                        group: group_number,
                        cost: cost * outputs.len(),
                        outputs,
                    });
                }
            }
        }
        ranges.sort_by_key(|range| std::cmp::Reverse(range.cost));
        ranges
    }
}

per_kernel! {
    /// `y += weight * x`.
    fn add_weighted = add_weighted_lanes(x: &[f32], weight: f32, y: &mut [f32])
}

#[inline(always)]
fn add_weighted_lanes<const FMA: bool>(x: &[f32], weight: f32, y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += weight * x;
    }
}
