//! The router: selects the experts of each row and their weights.

use std::sync::Arc;

use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::{exp, softplus};
use crate::op::{CpuArgs, Op, ShapeError};

/// How the logits of a router are converted to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts: the scores sum to 1.
    Softmax,
    /// The sigmoid `1 / (1 + e^-x)` of each logit.
    Sigmoid,
    /// The square root of `ln(1 + e^x)` of each logit.
    SqrtSoftplus,
}

impl Scoring {
    /// The number that represents it in `route.comp`.
    fn kind(self) -> u32 {
        match self {
            Scoring::Sigmoid => 0,
            Scoring::Softmax => 1,
            Scoring::SqrtSoftplus => 2,
        }
    }
}

/// Groups of equal size, of which a row uses only the best. The score of a group is that of its best expert with a softmax, else the
/// sum of its two best experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// The number of groups.
    pub count: usize,
    /// The number of groups from which a row selects its experts.
    pub used: usize,
}

/// Selects the `top_k` best experts of each row, best first. Of equal experts the one with the lower number comes
/// first.
///
/// - Input: logits [rows, n_experts]; output: routes [rows, 2 top_k], the expert numbers, then their weights.
/// - Experts are ranked by `score + bias`. The weight of an expert is its score, divided by the sum of the selected
///   scores if weights are renormalised, times `scale`, times the scale of the expert.
/// - The experts may be [given](Route::with_given_experts) by a second input, [rows, top_k]. Then scores only decide their weights.
/// - Source: Jiang et al. 2024, "Mixtral of Experts"; DeepSeek-AI 2024, "DeepSeek-V2", 2.2.2 (groups with a softmax), and
///   "DeepSeek-V3 Technical Report", 2.1.2 (bias, groups with sigmoids); DeepSeek-AI 2026, "DeepSeek-V4", 2.1 (given experts).
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
    is_given: bool,
}

impl Route {
    /// Routes to `top_k` of `n_experts` experts by score.
    ///
    /// # Errors
    /// [`ShapeError`] when `top_k` is 0 or exceeds `n_experts`.
    pub fn new(scoring: Scoring, n_experts: usize, top_k: usize) -> Result<Self, ShapeError> {
        if top_k == 0 || top_k > n_experts {
            return Err(mismatch("number of experts that a row uses", top_k, format!("between 1 and {n_experts}")));
        }
        let (groups, bias, renormalise, scale, expert_scales) = (None, None, false, 1.0, None);
        Ok(Route { scoring, n_experts, top_k, groups, bias, renormalise, scale, expert_scales, is_given: false })
    }

    /// Takes the experts of each row from a second input.
    #[must_use]
    pub fn with_given_experts(self) -> Self {
        Route { is_given: true, ..self }
    }

    /// Whether the experts of each row are an input.
    #[must_use]
    pub fn takes_experts(&self) -> bool {
        self.is_given
    }

    /// Sets whether the weights are normalised to sum to 1 before scaling.
    #[must_use]
    pub fn renormalised(self, renormalise: bool) -> Self {
        Route { renormalise, ..self }
    }

    /// Multiplies all weights by `scale`.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Route { scale, ..self }
    }

    /// Multiplies the weight of each expert by its own scale, `[n_experts]`.
    ///
    /// # Errors
    /// [`ShapeError`] when there is not one scale for each expert.
    pub fn with_expert_scales(self, expert_scales: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        self.check_length("scales of experts", expert_scales.as_deref())?;
        Ok(Route { expert_scales, ..self })
    }

    /// Adds `bias`, `[n_experts]`, to the scores for the selection, but not to the weights.
    ///
    /// # Errors
    /// [`ShapeError`] when there is not one value for each expert.
    pub fn with_bias(self, bias: Option<Arc<[f32]>>) -> Result<Self, ShapeError> {
        self.check_length("bias of the router", bias.as_deref())?;
        Ok(Route { bias, ..self })
    }

    /// Restricts each row to the experts of its best groups.
    ///
    /// # Errors
    /// [`ShapeError`] when the experts do not divide evenly into the groups, or the groups of a row have fewer than
    /// `top_k` experts.
    pub fn grouped(self, groups: Option<Groups>) -> Result<Self, ShapeError> {
        if let Some(Groups { count, used }) = groups {
            let divides = count > 0 && self.n_experts.is_multiple_of(count);
            if !divides {
                return Err(mismatch("number of groups of experts", count, format!("a divisor of {}", self.n_experts)));
            }
            if used == 0 || used > count || used * (self.n_experts / count) < self.top_k {
                let expected = format!("at most {count}, with {} experts in them", self.top_k);
                return Err(mismatch("number of groups that a row uses", used, expected));
            }
        }
        Ok(Route { groups, ..self })
    }

    fn check_length(&self, what: &str, values: Option<&[f32]>) -> Result<(), ShapeError> {
        values.map_or(Ok(()), |values| ShapeError::check("route", what, values.len(), self.n_experts))
    }

    /// How logits are converted to scores.
    #[must_use]
    pub fn scoring(&self) -> Scoring {
        self.scoring
    }

    /// The number of experts.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// The number of experts that a row uses.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// The groups of experts.
    #[must_use]
    pub fn groups(&self) -> Option<Groups> {
        self.groups
    }

    /// The bias of the selection.
    #[must_use]
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Whether the weights are normalised to sum to 1 before scaling.
    #[must_use]
    pub fn renormalises(&self) -> bool {
        self.renormalise
    }

    /// The factor of all weights.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The factor of each expert's weight.
    #[must_use]
    pub fn expert_scales(&self) -> Option<&[f32]> {
        self.expert_scales.as_deref()
    }

    /// Writes the routes of one row, whose experts may be given. `scores` is working memory, one entry for each expert.
    fn row(&self, logits: &[f32], given: Option<&[f32]>, scores: &mut [Candidate], routes: &mut [f32]) {
        self.score(logits, scores);
        if let Some(groups) = self.groups {
            exclude_groups(scores, self.scoring, groups);
        }
        let (experts, weights) = routes.split_at_mut(self.top_k);
        let mut sum = 0.0;
        for (index, (expert, weight)) in experts.iter_mut().zip(&mut *weights).enumerate() {
            let chosen = given.map_or_else(|| best(scores), |given| (given[index] as usize).min(self.n_experts - 1));
            (*expert, *weight) = (chosen as f32, scores[chosen].score);
            scores[chosen].preference = None;
            sum += *weight;
        }
        // All scores may be 0, and then so is their sum.
        let divisor = if self.renormalise { sum.max(f32::MIN_POSITIVE) } else { 1.0 };
        for (expert, weight) in experts.iter().zip(weights) {
            let of_expert = self.expert_scales.as_ref().map_or(1.0, |scales| scales[*expert as usize]);
            *weight = *weight / divisor * self.scale * of_expert;
        }
    }

    fn score(&self, logits: &[f32], scores: &mut [Candidate]) {
        let (largest, sum) = match self.scoring {
            Scoring::Sigmoid | Scoring::SqrtSoftplus => (0.0, 1.0),
            Scoring::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                (largest, logits.iter().map(|x| exp(x - largest)).sum())
            }
        };
        for (expert, (candidate, x)) in scores.iter_mut().zip(logits).enumerate() {
            let score = match self.scoring {
                Scoring::Sigmoid => 1.0 / (1.0 + exp(-x)),
                Scoring::Softmax => exp(x - largest) / sum,
                Scoring::SqrtSoftplus => softplus(*x).sqrt(),
            };
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
            *candidate = Candidate { score, preference: Some(score + bias) };
        }
    }
}

/// An expert in the selection of one row.
#[derive(Clone, Copy, Default)]
struct Candidate {
    score: f32,
    /// Score and bias; `None` once the expert is selected or excluded.
    preference: Option<f32>,
}

/// The candidate with the highest preference. The first one wins among equals, and if no preferences compare (NaN).
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

/// Excludes all experts that are not in the best groups.
fn exclude_groups(candidates: &mut [Candidate], scoring: Scoring, Groups { count, used }: Groups) {
    let size = candidates.len() / count;
    let score = |group: &[Candidate]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for preference in group.iter().filter_map(|candidate| candidate.preference) {
            (first, second) = (first.max(preference), second.max(preference.min(first)));
        }
        if second == f32::NEG_INFINITY || scoring == Scoring::Softmax { first } else { first + second }
    };
    let mut groups: Vec<Candidate> =
        candidates.chunks_exact(size).map(|group| Candidate { score: 0.0, preference: Some(score(group)) }).collect();
    let mut is_kept = vec![false; count];
    for _ in 0..used {
        let best = best(&groups);
        groups[best].preference = None;
        is_kept[best] = true;
    }
    for (group, is_kept) in candidates.chunks_exact_mut(size).zip(is_kept) {
        if !is_kept {
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
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1 + usize::from(self.is_given))?;
        ShapeError::check(self.name(), "number of logits", inputs[0], self.n_experts)?;
        if let Some(&given) = inputs.get(1) {
            ShapeError::check(self.name(), "number of given experts", given, self.top_k)?;
        }
        Ok(vec![2 * self.top_k])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (logits, given, width) = (args.inputs[0], args.inputs.get(1), 2 * self.top_k);
        for_each_chunk(args.team, args.outputs[0], width, &|row, routes| {
            let mut candidates = vec![Candidate::default(); self.n_experts];
            let given = given.map(|given| &given[row * self.top_k..][..self.top_k]);
            self.row(&logits[row * self.n_experts..][..self.n_experts], given, &mut candidates, routes);
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        self.bias().into_iter().chain(self.expert_scales()).collect()
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![dispatch(self, args)]
    }
}

/// The dispatch of [`Route`].
fn dispatch(route: &Route, args: &GpuArgs<'_>) -> Dispatch {
    let mut tables = args.tables.iter().map(|table| table.address);
    let mut table_of = |present: bool| if present { tables.next().unwrap_or(0) } else { 0 };
    let (bias, scales) = (table_of(route.bias().is_some()), table_of(route.expert_scales().is_some()));
    let (logits, routes) = (args.inputs[0].region, args.outputs[0].region);
    let given = args.inputs.get(1).map(|given| given.region);
    let push = Push::new()
        .address(logits.address)
        .address(bias)
        .address(scales)
        .address(given.map_or(0, |given| given.address))
        .address(routes.address)
        .address(args.step)
        .word(args.rows.kind())
        .float(route.scale());
    let (n_groups, used_groups) = route.groups().map_or((1, 1), |groups| (groups.count, groups.used));
    let constants = [
        (0, args.workgroup_size()),
        (1, word(route.n_experts())),
        (2, word(route.top_k())),
        (3, route.scoring().kind()),
        (4, word(n_groups)),
        (5, word(used_groups)),
        (6, u32::from(bias != 0)),
        (7, u32::from(scales != 0)),
        (8, u32::from(route.renormalises())),
        (9, u32::from(route.takes_experts())),
    ];
    Dispatch {
        module: Module::ExpertsRoute,
        constants: constants.into(),
        push,
        groups: [1, word(args.rows.most()), 1],
        reads: [logits].into_iter().chain(given).collect(),
        writes: vec![routes],
    }
}
