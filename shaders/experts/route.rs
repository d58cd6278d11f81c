//! Which experts a row uses, and how much each counts.

use std::sync::Arc;

use super::gpu;
use crate::cpu::SharedMut;
use crate::gpu::{Dispatch, GpuArgs};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};

/// How a router's logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Shares of all experts that add up to 1.
    Softmax,
    /// Each by itself, `1 / (1 + e^-x)`.
    Sigmoid,
}

/// Experts in groups of equal size, of which only the best are looked at; a group counts as the sum of its two best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// How many groups there are.
    pub count: usize,
    /// How many of them a row looks at.
    pub used: usize,
}

/// The `top_k` best experts of each row, best first; of equals the one with the lower number.
///
/// - Input: logits [rows, n_experts]; output: routes [rows, 2 top_k], the experts' numbers, then their weights.
/// - What is best is decided by `score + bias`; the weight is the score, divided by the sum of the chosen ones' where that is
///   due, times `scale`, times the expert's own scale.
/// - Source: Jiang et al. 2024, "Mixtral of Experts"; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", 2.1.2 (bias, groups).
#[derive(Debug, Clone)]
pub struct Route {
    scoring: Scoring,
    n_experts: usize,
    top_k: usize,
    groups: Option<Groups>,
    /// `[n_experts]`
    bias: Option<Arc<[f32]>>,
    renormalise: bool,
    scale: f32,
    /// `[n_experts]`
    expert_scales: Option<Arc<[f32]>>,
}

impl Route {
    /// Routes to `top_k` of `n_experts`, by their scores alone.
    ///
    /// # Errors
    /// [`ShapeError`] when there are not as many.
    pub fn new(scoring: Scoring, n_experts: usize, top_k: usize) -> Result<Self, ShapeError> {
        if top_k == 0 || top_k > n_experts {
            return Err(mismatch("number of experts that a row uses", top_k, format!("between 1 and {n_experts}")));
        }
        let (groups, bias, renormalise, scale, expert_scales) = (None, None, false, 1.0, None);
        Ok(Route { scoring, n_experts, top_k, groups, bias, renormalise, scale, expert_scales })
    }

    /// With weights that add up to 1 before they are scaled.
    #[must_use]
    pub fn renormalised(self, renormalise: bool) -> Self {
        Route { renormalise, ..self }
    }

    /// With all weights times this.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Route { scale, ..self }
    }

    /// With each expert's weight times its own scale, `[n_experts]`.
    ///
    /// # Errors
    /// [`ShapeError`] when they are not as many.
    pub fn with_expert_scales(self, expert_scales: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        self.check_length("scales of experts", expert_scales.as_deref())?;
        Ok(Route { expert_scales, ..self })
    }

    /// With this added to the scores where experts are chosen, `[n_experts]`.
    ///
    /// # Errors
    /// [`ShapeError`] when they are not as many.
    pub fn with_bias(self, bias: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        self.check_length("bias of the router", bias.as_deref())?;
        Ok(Route { bias, ..self })
    }

    /// With experts in groups.
    ///
    /// # Errors
    /// [`ShapeError`] when the experts do not divide into them, or a row would not find experts enough in those it looks at.
    pub fn grouped(self, groups: Option<Groups>) -> Result<Self, ShapeError> {
        if let Some(Groups { count, used }) = groups {
            let divides = count > 0 && self.n_experts.is_multiple_of(count);
            if !divides {
                return Err(mismatch("number of groups of experts", count, format!("a divisor of {}", self.n_experts)));
            }
            if used == 0 || used > count || used * (self.n_experts / count) < self.top_k {
                let expected = format!("at most {count}, with {} experts in them", self.top_k);
                return Err(mismatch("number of groups that a row looks at", used, expected));
            }
        }
        Ok(Route { groups, ..self })
    }

    fn check_length(&self, what: &str, values: Option<&[f32]>) -> Result<(), ShapeError> {
        values.map_or(Ok(()), |values| ShapeError::check("route", what, values.len(), self.n_experts))
    }

    /// How logits become scores.
    #[must_use]
    pub fn scoring(&self) -> Scoring {
        self.scoring
    }

    /// How many experts there are.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// How many experts a row uses.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// The groups of experts.
    #[must_use]
    pub fn groups(&self) -> Option<Groups> {
        self.groups
    }

    /// What is added where experts are chosen.
    #[must_use]
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Whether the weights add up to 1 before they are scaled.
    #[must_use]
    pub fn renormalises(&self) -> bool {
        self.renormalise
    }

    /// What multiplies all weights.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// What multiplies each expert's weight.
    #[must_use]
    pub fn expert_scales(&self) -> Option<&[f32]> {
        self.expert_scales.as_deref()
    }

    /// The routes of one row, `scores` being memory to work in for each expert.
    fn row(&self, logits: &[f32], scores: &mut [Candidate], routes: &mut [f32]) {
        self.score(logits, scores);
        if let Some(groups) = self.groups {
            rule_out_groups(scores, groups);
        }
        let (experts, weights) = routes.split_at_mut(self.top_k);
        let mut sum = 0.0;
        for (expert, weight) in experts.iter_mut().zip(&mut *weights) {
            let best = best(scores);
            (*expert, *weight) = (best as f32, scores[best].score);
            scores[best].preference = None;
            sum += *weight;
        }
        // Where all scores have vanished no weight is better than another.
        let divisor = if self.renormalise { sum.max(f32::MIN_POSITIVE) } else { 1.0 };
        for (expert, weight) in experts.iter().zip(weights) {
            let of_expert = self.expert_scales.as_ref().map_or(1.0, |scales| scales[*expert as usize]);
            *weight = *weight / divisor * self.scale * of_expert;
        }
    }

    fn score(&self, logits: &[f32], scores: &mut [Candidate]) {
        let (largest, sum) = match self.scoring {
            Scoring::Sigmoid => (0.0, 1.0),
            Scoring::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                (largest, logits.iter().map(|x| exp(x - largest)).sum())
            }
        };
        for (expert, (candidate, x)) in scores.iter_mut().zip(logits).enumerate() {
            let score = match self.scoring {
                Scoring::Sigmoid => 1.0 / (1.0 + exp(-x)),
                Scoring::Softmax => exp(x - largest) / sum,
            };
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
            *candidate = Candidate { score, preference: Some(score + bias) };
        }
    }
}

/// An expert, as a row sees it.
#[derive(Clone, Copy, Default)]
struct Candidate {
    score: f32,
    /// By what it is chosen; `None` once it is, or when it cannot be.
    preference: Option<f32>,
}

/// The best that is left; of equals, and where nothing compares, the first.
fn best(candidates: &[Candidate]) -> usize {
    let mut best: Option<(usize, f32)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if let Some(preference) = candidate.preference
            && best.is_none_or(|(_, most)| preference > most)
        {
            best = Some((index, preference));
        }
    }
    best.map_or(0, |(index, _)| index)
}

/// Leaves the experts of the best groups.
fn rule_out_groups(candidates: &mut [Candidate], Groups { count, used }: Groups) {
    let size = candidates.len() / count;
    let two_best = |group: &[Candidate]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for preference in group.iter().filter_map(|candidate| candidate.preference) {
            (first, second) = (first.max(preference), second.max(preference.min(first)));
        }
        if second == f32::NEG_INFINITY { first } else { first + second }
    };
    let mut groups: Vec<Candidate> = candidates
        .chunks_exact(size)
        .map(|group| Candidate { score: 0.0, preference: Some(two_best(group)) })
        .collect();
    let mut stays = vec![false; count];
    for _ in 0..used {
        let best = best(&groups);
        groups[best].preference = None;
        stays[best] = true;
    }
    for (group, stays) in candidates.chunks_exact_mut(size).zip(stays) {
        if !stays {
            group.iter_mut().for_each(|candidate| candidate.preference = None);
        }
    }
}

fn mismatch(what: &str, found: usize, expected: String) -> ShapeError {
    ShapeError::Mismatch { op: "route", what: what.to_owned(), found, expected }
}

impl Op for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "number of logits", inputs[0], self.n_experts)?;
        Ok(vec![2 * self.top_k])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (logits, width) = (args.inputs[0], 2 * self.top_k);
        let routes = SharedMut::new(args.outputs[0]);
        args.team.for_each(args.rows, &|row| {
            // SAFETY: each task has its own row.
            let routes = unsafe { routes.slice(row * width, width) };
            let mut candidates = vec![Candidate::default(); self.n_experts];
            self.row(&logits[row * self.n_experts..][..self.n_experts], &mut candidates, routes);
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.bias().into_iter().chain(self.expert_scales()).collect()
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::route(self, args)
    }
}
