//! Samples one token: greedily, or randomly from the truncated distribution.
//!
//! Parameters apply in this order, each to what the previous one kept: temperature, min_p and top_n_sigma, top_k, typical_p, top_p,
//! xtc. With temperature, min_p, top_k and top_p alone this is the formula of
//! [`SampleToken`](cuelight_shaders::sample_token::SampleToken), implemented so that few tokens are sorted. A dynamic temperature comes
//! last, because it depends on what the others keep.

use std::ops::Range;
use std::sync::LazyLock;

use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::sample_token::weight::{RowScale, below, share_of, sum, sum_of_row, weight};
use cuelight_shaders::sample_token::{SampledToken, floor, inverse};

use super::draw::Draw;
use super::error::InvalidLogits;
use super::exp::sum_exp;
use super::params::{JointTokens, SamplingParams};
use super::penalties::{self, TokenCounts};
use crate::constraint::TokenMask;
use crate::engine::TokenId;

/// The token that an engine sampled.
///
/// # Errors
/// [`InvalidLogits`] when the engine found that the row is not a distribution.
pub fn token_of(sampled: SampledToken) -> Result<TokenId, InvalidLogits> {
    match sampled {
        SampledToken::Token(token) => Ok(token),
        SampledToken::Nothing => Err(InvalidLogits::Empty),
        SampledToken::NotFinite(token) => Err(InvalidLogits::NotFinite(token)),
    }
}

/// A mask that allows at most one token in this many is sampled without the others.
const FEW: usize = 4;

/// Logits that are skipped together when none of them is large enough.
const GATHER_BLOCK: usize = 64;

/// The fastest kernel of this machine. All have the same results.
static BEST: LazyLock<Kernel> = LazyLock::new(Kernel::detect);

/// A token and its logit, divided by the temperature once truncation has begun.
type Candidate = (TokenId, f32);

/// Samples tokens. It keeps its buffers between calls; each sampling thread has its own.
#[derive(Debug, Default)]
pub struct TokenSampler {
    /// A copy of the row, changed by penalties and bias.
    adjusted: Vec<f32>,
    /// The few tokens that a mask allows, in the order of their ids, and their logits.
    allowed: Vec<TokenId>,
    allowed_logits: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl TokenSampler {
    /// Samples the next token from one row of logits: one that `mask` allows and that is not `banned`.
    ///
    /// # Errors
    /// [`InvalidLogits`] when the row is not a distribution.
    pub fn choose(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        counts: &TokenCounts,
        banned: &[TokenId],
        mask: Option<&TokenMask>,
        draw: Draw,
    ) -> Result<TokenId, InvalidLogits> {
        if banned.is_empty() && mask.is_none() && params.keeps_logits() {
            return draw_from(logits, params, draw, &mut self.candidates);
        }
        // Checked before bias is added: a bias of minus infinity could hide a NaN or an infinite logit.
        largest(logits)?;
        let few = mask.filter(|mask| mask.count() <= logits.len() / FEW);
        if let (Some(mask), true) = (few, params.keeps_logits()) {
            return self.choose_among(mask, banned, logits, params, draw);
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        penalties::apply(&mut adjusted, params, counts);
        let chosen = match (few, mask) {
            (Some(mask), _) => self.choose_among(mask, banned, &adjusted, params, draw),
            (None, mask) => {
                exclude(&mut adjusted, banned, mask);
                if let Some(JointTokens { first, last }) = params.joint_tokens {
                    weigh_as_one(&mut adjusted, first as usize..last as usize + 1);
                }
                draw_from(&adjusted, params, draw, &mut self.candidates)
            }
        };
        self.adjusted = adjusted;
        chosen
    }

    /// Samples one of the few tokens of `mask`. The result is the same as from the whole row with all other logits at minus
    /// infinity, because the sums are integers and the tokens keep their order.
    fn choose_among(
        &mut self,
        mask: &TokenMask,
        banned: &[TokenId],
        logits: &[f32],
        params: &SamplingParams,
        draw: Draw,
    ) -> Result<TokenId, InvalidLogits> {
        self.allowed.clear();
        self.allowed_logits.clear();
        for token in mask.tokens().filter(|token| !banned.contains(token)) {
            if let Some(&logit) = logits.get(token as usize) {
                self.allowed.push(token);
                self.allowed_logits.push(logit);
            }
        }
        if let Some(JointTokens { first, last }) = params.joint_tokens {
            let place = |token: TokenId| self.allowed.partition_point(|allowed| *allowed < token);
            let joint = place(first)..place(last.saturating_add(1));
            weigh_as_one(&mut self.allowed_logits, joint);
        }
        let token_at = |place: TokenId| self.allowed.get(place as usize).copied().ok_or(InvalidLogits::Empty);
        match draw_from(&self.allowed_logits, params, draw, &mut self.candidates) {
            Err(InvalidLogits::NotFinite(place)) => Err(InvalidLogits::NotFinite(token_at(place)?)),
            place => token_at(place?),
        }
    }
}

/// Sets the logits of the tokens that may not come next to minus infinity.
fn exclude(logits: &mut [f32], banned: &[TokenId], mask: Option<&TokenMask>) {
    if let Some(mask) = mask {
        mask.apply(logits);
    }
    for &token in banned {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Sets all other logits to minus infinity if one of the `joint` tokens is likelier than every other one.
fn weigh_as_one(logits: &mut [f32], joint: Range<usize>) {
    let joint = joint.start.min(logits.len())..joint.end.min(logits.len());
    let largest = |logits: &[f32]| logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (before, rest) = logits.split_at(joint.start);
    let (group, after) = rest.split_at(joint.len());
    let (others, max) = (largest(before).max(largest(after)), largest(group));
    let sum: f64 = group.iter().map(|logit| f64::from(logit - max).exp()).sum();
    if f64::from(max) + sum.ln() > f64::from(others) {
        logits[..joint.start].fill(f32::NEG_INFINITY);
        logits[joint.end..].fill(f32::NEG_INFINITY);
    }
}

fn draw_from(
    logits: &[f32],
    params: &SamplingParams,
    draw: Draw,
    candidates: &mut Vec<Candidate>,
) -> Result<TokenId, InvalidLogits> {
    let (best, max) = largest(logits)?;
    if params.temperature <= 0.0 || params.top_k == 1 {
        return Ok(best);
    }
    // The floor excludes at least the tokens that have a weight of 0.
    let dynamic = params.dynamic_temperature.is_on();
    let temperature = if dynamic { 1.0 } else { params.temperature };
    let mut scale = RowScale { max, inverse: inverse(temperature), floor: floor(params.min_p) };
    if params.top_n_sigma > 0.0 {
        let lowest = -params.top_n_sigma * deviation(logits) * scale.inverse;
        scale.floor = scale.floor.max(lowest.min(0.0));
    }
    if params.keeps_all_tokens() && !dynamic {
        let scale = RowScale { floor: f32::NEG_INFINITY, ..scale };
        return Ok(pick_from_row(draw.random(), best, logits, scale));
    }
    truncate(logits, scale, params, candidates);
    if params.xtc.applies(draw) {
        exclude_top(candidates, params.xtc.threshold);
    }
    candidates.sort_unstable_by_key(|(token, _)| *token);
    if dynamic {
        let temperature = params.dynamic_temperature.at(params.temperature, share_of_entropy(candidates));
        if temperature <= 0.0 {
            return Ok(candidates.iter().min_by(|a, b| by_rank(a, b)).map_or(best, |&(token, _)| token));
        }
        rescale(candidates, temperature);
    }
    let total = sum(candidates, |(_, logit)| logit);
    Ok(pick(below(total, draw.random()), best, candidates.iter().copied()))
}

/// Draws from a whole row: finds the block by the sums of the blocks, then the token within the block.
fn pick_from_row(random: u64, fallback: TokenId, logits: &[f32], scale: RowScale) -> TokenId {
    const BLOCK: usize = 1024;
    let kernel = *BEST;
    let sums: Vec<u64> = logits.chunks(BLOCK).map(|block| sum_of_row(kernel, block, scale)).collect();
    let mut left = below(sums.iter().sum(), random);
    let found = sums.iter().position(|sum| {
        let here = left < *sum;
        left -= if here { 0 } else { *sum };
        here
    });
    let Some(block) = found else { return fallback };
    let start = block * BLOCK;
    let tokens = (start..).zip(&logits[start..logits.len().min(start + BLOCK)]);
    pick(left, fallback, tokens.map(|(token, &logit)| (token as TokenId, scale.apply(logit))))
}

/// Fills `candidates` with the tokens that the parameters keep and their scaled logits, of which the largest is 0.
fn truncate(logits: &[f32], scale: RowScale, params: &SamplingParams, candidates: &mut Vec<Candidate>) {
    /// Tokens less likely than e^-12 times the best token are many and rarely matter, so they are gathered only if needed.
    const NEAR: f32 = -12.0;
    let weigh = |candidates: &[Candidate]| sum(candidates, |(_, logit)| logit);
    gather(logits, RowScale { floor: scale.floor.max(NEAR), ..scale }, candidates);
    let mut total = weigh(candidates);
    if scale.floor < NEAR {
        let enough = if params.top_k > 0 {
            candidates.len() >= params.top_k
        } else {
            let near = total;
            total = sum_of_row(*BEST, logits, scale);
            params.typical_p >= 1.0 && near >= share_of(total, params.top_p)
        };
        if !enough {
            gather(logits, scale, candidates);
        }
    }
    if params.top_k > 0 {
        keep_best(candidates, params.top_k);
        total = weigh(candidates);
    }
    if params.typical_p < 1.0 {
        keep_typical(candidates, params.typical_p);
        total = weigh(candidates);
    }
    if params.top_p < 1.0 {
        keep_nucleus(candidates, share_of(total, params.top_p));
    }
}

/// Fills `candidates` with the tokens whose scaled logits are not below the floor.
fn gather(logits: &[f32], scale: RowScale, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (block, logits) in (0..).step_by(GATHER_BLOCK).zip(logits.chunks(GATHER_BLOCK)) {
        // Most blocks have no candidate. Their largest logit shows it, which the compiler finds with vectors.
        let largest = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max });
        if scale.apply(largest) < scale.floor {
            continue;
        }
        let scaled = (block..).zip(logits).map(|(token, &logit)| (token, scale.apply(logit)));
        candidates.extend(scaled.filter(|&(_, logit)| logit >= scale.floor));
    }
}

/// The first candidate at which the running sum of weights exceeds `left`; `fallback` if there is none.
fn pick(left: u64, fallback: TokenId, mut candidates: impl Iterator<Item = Candidate>) -> TokenId {
    let mut left = left;
    let found = candidates.find(|&(_, logit)| {
        let weight = weight(logit);
        let here = left < weight;
        left -= if here { 0 } else { weight };
        here
    });
    found.map_or(fallback, |(token, _)| token)
}

/// Larger logits first; of equal logits the lower id first.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the `k` best candidates, best first.
fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, by_rank);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(by_rank);
}

/// Keeps the smallest number of best candidates whose weights sum to `target`. Sorts no more candidates than needed.
fn keep_nucleus(candidates: &mut Vec<Candidate>, target: u64) {
    let mut sorted = 256;
    loop {
        let examined = sorted.min(candidates.len());
        if examined < candidates.len() {
            candidates.select_nth_unstable_by(examined, by_rank);
        }
        candidates[..examined].sort_unstable_by(by_rank);
        let mut left = target;
        let end = candidates[..examined].iter().position(|&(_, logit)| {
            left = left.saturating_sub(weight(logit));
            left == 0
        });
        if let Some(end) = end {
            return candidates.truncate(end + 1);
        }
        if examined == candidates.len() {
            return;
        }
        sorted *= 8;
    }
}

/// The entropy of the candidates, in parts of that of as many equally likely ones.
fn share_of_entropy(candidates: &[Candidate]) -> f64 {
    let most = (candidates.len() as f64).ln();
    if most > 0.0 { entropy(candidates, log_sum(candidates)) / most } else { 0.0 }
}

/// Divides the logits by a temperature. The largest stays 0, whatever was removed before.
fn rescale(candidates: &mut [Candidate], temperature: f32) {
    let max = candidates.iter().fold(f32::NEG_INFINITY, |max, &(_, logit)| max.max(logit));
    for (_, logit) in candidates {
        *logit = (*logit - max) * inverse(temperature);
    }
}

fn log_sum(candidates: &[Candidate]) -> f64 {
    sum_exp(candidates, |(_, logit)| logit).ln()
}

/// The entropy of the candidates, whose log-probabilities are their logits minus `log_sum`.
fn entropy(candidates: &[Candidate], log_sum: f64) -> f64 {
    let logprobs = candidates.iter().map(|&(_, logit)| f64::from(logit) - log_sum);
    logprobs.map(|logprob| -logprob * logprob.exp()).sum()
}

/// Keeps the tokens whose information content is closest to the distribution's entropy, until their probabilities sum to
/// `p`.
fn keep_typical(candidates: &mut Vec<Candidate>, p: f32) {
    let log_sum = log_sum(candidates);
    let logprob = |logit: f32| f64::from(logit) - log_sum;
    let entropy = entropy(candidates, log_sum);
    let distance = |&(_, logit): &Candidate| (-logprob(logit) - entropy).abs();
    candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(by_rank(a, b)));
    let mut left = f64::from(p);
    let end = candidates.iter().position(|&(_, logit)| {
        left -= logprob(logit).exp();
        left <= 0.0
    });
    if let Some(end) = end {
        candidates.truncate(end + 1);
    }
    candidates.sort_unstable_by(by_rank);
}

/// Removes the tokens that have at least a probability, except the least likely of them.
fn exclude_top(candidates: &mut Vec<Candidate>, probability: f32) {
    candidates.sort_unstable_by(by_rank);
    let least = share_of(sum(candidates, |(_, logit)| logit), probability.min(1.0));
    let likely = candidates.iter().take_while(|(_, logit)| weight(*logit) >= least).count();
    candidates.drain(..likely.saturating_sub(1));
}

/// The standard deviation of the logits that are not minus infinity.
fn deviation(logits: &[f32]) -> f32 {
    let finite = || logits.iter().filter(|logit| logit.is_finite()).map(|&logit| f64::from(logit));
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    (finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt() as f32
}

/// The `n` largest logits with their tokens, best first, in one pass. Fast for a small `n`, because few logits are among
/// the best so far.
pub(super) fn best_first(logits: &[f32], n: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(n.min(logits.len()));
    let mut worst = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if best.len() == n && logit <= worst {
            continue;
        }
        // Before all smaller logits and after equal ones, which have lower ids.
        let index = best.partition_point(|&(_, other)| other >= logit);
        if best.len() == n {
            best.pop();
        }
        if index < n {
            best.insert(index, (token as TokenId, logit));
        }
        worst = best.last().map_or(f32::INFINITY, |&(_, logit)| logit);
    }
    best
}

/// The largest logit, with the lowest token that has it, in one pass.
///
/// # Errors
/// [`InvalidLogits`] when a logit is NaN or +inf, or none is above -inf.
pub(super) fn largest(logits: &[f32]) -> Result<(TokenId, f32), InvalidLogits> {
    let best = largest_of_row(*BEST, logits)?;
    if best.1 == f32::NEG_INFINITY { Err(InvalidLogits::Empty) } else { Ok(best) }
}

cuelight_shaders::per_kernel! {
    fn largest_of_row = largest_with(logits: &[f32]) -> Result<Candidate, InvalidLogits>
}

#[inline(always)]
fn largest_with<const FMA: bool>(logits: &[f32]) -> Result<Candidate, InvalidLogits> {
    const BLOCK: usize = 256;
    const LANES: usize = 16;
    let is_bad = |value: f32| value.is_nan() || value == f32::INFINITY;
    let mut best = (0, f32::NEG_INFINITY);
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        // Independent lanes, which the compiler vectorises. Comparisons with NaN are false, so NaN needs its own check.
        let mut max = [f32::NEG_INFINITY; LANES];
        let mut bad = [false; LANES];
        for lanes in values.chunks(LANES) {
            for (lane, &value) in lanes.iter().enumerate() {
                max[lane] = if value > max[lane] { value } else { max[lane] };
                bad[lane] |= is_bad(value);
            }
        }
        if bad.contains(&true) {
            let index = values.iter().position(|&value| is_bad(value)).unwrap_or_default();
            return Err(InvalidLogits::NotFinite((block * BLOCK + index) as TokenId));
        }
        let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if max > best.1 {
            let index = values.iter().position(|&value| value == max).unwrap_or_default();
            best = ((block * BLOCK + index) as TokenId, max);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{DynamicTemperature, RepeatPenalty, TopExclusion};
    use cuelight_shaders::sample_token::reference;
    use proptest::prelude::*;

    fn choose(logits: &[f32], params: &SamplingParams, index: u64) -> TokenId {
        TokenSampler::default()
            .choose(logits, params, &TokenCounts::default(), &[], None, Draw { seed: 42, position: index })
            .unwrap()
    }

    /// All tokens that occur in 4,000 draws.
    fn support(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
        let mut seen: Vec<_> = (0..4000).map(|index| choose(logits, params, index)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn joint_tokens_are_weighed_as_one() {
        let params = SamplingParams {
            temperature: 0.0,
            joint_tokens: Some(JointTokens { first: 2, last: 4 }),
            ..SamplingParams::default()
        };
        // Together 1.5 + ln 3 = 2.6.
        assert_eq!(choose(&[0.0, 2.5, 1.5, 1.5, 1.4, 1.0], &params, 0), 2);
        assert_eq!(choose(&[0.0, 2.7, 1.5, 1.5, 1.4, 1.0], &params, 0), 1);
        let random = SamplingParams { temperature: 1.0, ..params.clone() };
        assert_eq!(support(&[0.0, 2.5, 1.5, 1.5, 1.5, 1.0], &random), [2, 3, 4]);
        let among = |logits: &[f32], tokens: &[TokenId]| {
            let mask = TokenMask::of(logits.len(), tokens.iter().map(|token| *token as usize));
            let draw = Draw { seed: 1, position: 0 };
            TokenSampler::default().choose(logits, &params, &TokenCounts::default(), &[], Some(&mask), draw).unwrap()
        };
        let logits = [&[0.0, 1.4, 1.0, 1.0, 1.0][..], &[0.0; 20]].concat();
        assert_eq!(among(&logits, &[1, 2, 3]), 2);
        assert_eq!(among(&logits, &[0, 1, 3]), 1, "of the joint tokens one is allowed");
        assert_eq!(among(&logits, &[0, 1]), 1);
    }

    /// The tokens that the truncations keep, sorted.
    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut candidates = Vec::new();
        let scale = RowScale { max, inverse: inverse(params.temperature), floor: floor(params.min_p) };
        truncate(logits, scale, params, &mut candidates);
        let mut tokens: Vec<_> = candidates.into_iter().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The tokens that the truncations keep by their definitions, sorted.
    fn reference(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
        let softmax = |kept: &[(TokenId, f64)]| -> Vec<f64> {
            let sum: f64 = kept.iter().map(|&(_, l)| l.exp()).sum();
            kept.iter().map(|&(_, l)| l.exp() / sum).collect()
        };
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut kept: Vec<(TokenId, f64)> = logits
            .iter()
            .enumerate()
            .map(|(t, &l)| (t as TokenId, f64::from((l - max) / params.temperature)))
            .collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        kept.retain(|&(_, l)| l.exp() >= f64::from(params.min_p));
        if params.top_k > 0 {
            kept.truncate(params.top_k);
        }
        let until = |order: Vec<(TokenId, f64, f64)>, p: f32| {
            let mut sum = 0.0;
            let mut kept = Vec::new();
            for (token, logit, probability) in order {
                kept.push((token, logit));
                sum += probability;
                if sum >= f64::from(p) {
                    break;
                }
            }
            kept
        };
        if params.typical_p < 1.0 {
            let ps = softmax(&kept);
            let entropy: f64 = ps.iter().map(|p| -p * p.ln()).sum();
            let mut order: Vec<_> = kept.iter().zip(&ps).map(|(&(t, l), &p)| (t, l, p)).collect();
            order.sort_by(|a, b| (-a.2.ln() - entropy).abs().total_cmp(&(-b.2.ln() - entropy).abs()));
            kept = until(order, params.typical_p);
            kept.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
        if params.top_p < 1.0 {
            let ps = softmax(&kept);
            kept = until(kept.iter().zip(ps).map(|(&(t, l), p)| (t, l, p)).collect(), params.top_p);
        }
        let mut tokens: Vec<_> = kept.into_iter().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn greedy_sampling_returns_the_lowest_of_the_best_tokens() {
        let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
        for token in [0, 1, 255, 256, 700, 999] {
            let mut logits = vec![-1.0; 1000];
            logits[token] = 5.0;
            logits[999] = 5.0;
            assert_eq!(choose(&logits, &greedy, 0), token as TokenId);
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [1.0f32, 0.0, -1.0, 2.0, 0.5];
        for temperature in [0.7f32, 1.0, 2.0] {
            let params = SamplingParams { temperature, ..Default::default() };
            let weights = logits.map(|l| f64::from(l / temperature).exp());
            let mut counts = [0.0f64; 5];
            for index in 0..20_000 {
                counts[choose(&logits, &params, index) as usize] += 1.0;
            }
            let total: f64 = weights.iter().sum();
            let chi_square: f64 = (0..5)
                .map(|t| weights[t] / total * 20_000.0)
                .zip(counts)
                .map(|(expected, count)| (count - expected).powi(2) / expected)
                .sum();
            assert!(chi_square < 18.5, "4 degrees of freedom, p = 0.001: {chi_square} at {temperature}");
        }
    }

    #[test]
    fn extreme_logits_and_temperatures_give_the_best_token() {
        let coldest = SamplingParams { temperature: f32::MIN_POSITIVE, ..Default::default() };
        assert_eq!(support(&[1.0, 3.0, 2.0], &coldest), [1]);
        assert_eq!(support(&[3e38, -3e38, 1.0], &SamplingParams::default()), [0]);
        let masked = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        assert_eq!(support(&masked, &SamplingParams { top_k: 3, ..Default::default() }), [1]);
    }

    #[test]
    fn tokens_far_below_the_best_are_cut_in_standard_deviations() {
        // The mean is 2 and the standard deviation 2.
        let logits = [0.0, 0.0, 4.0, 4.0];
        for (top_n_sigma, kept) in [(1.9, vec![2, 3]), (2.1, vec![0, 1, 2, 3])] {
            let params = SamplingParams { top_n_sigma, temperature: 3.0, ..Default::default() };
            assert_eq!(support(&logits, &params), kept, "{top_n_sigma}");
        }
        let masked = [f32::NEG_INFINITY, 0.0, 4.0, f32::NEG_INFINITY];
        assert_eq!(support(&masked, &SamplingParams { top_n_sigma: 1.5, ..Default::default() }), [2]);
    }

    #[test]
    fn the_top_choices_are_excluded_as_often_as_asked() {
        // Probabilities of about 0.64, 0.23, 0.09 and 0.03.
        let logits = [3.0, 2.0, 1.0, 0.0];
        let xtc = |probability, threshold| SamplingParams {
            xtc: TopExclusion { probability, threshold },
            ..Default::default()
        };
        assert_eq!(support(&logits, &xtc(1.0, 0.2)), [1, 2, 3], "the least likely of two stays");
        assert_eq!(support(&logits, &xtc(1.0, 0.05)), [2, 3]);
        assert_eq!(support(&logits, &xtc(1.0, 0.5)), [0, 1, 2, 3], "one alone stays");
        let draws = |params: &SamplingParams| (0..4000).filter(|&index| choose(&logits, params, index) == 0).count();
        let (always, half) = (draws(&SamplingParams::default()), draws(&xtc(0.5, 0.2)));
        assert!(half.abs_diff(always / 2) < 150, "{half} of {always}");
    }

    #[test]
    fn repetitions_are_penalised_through_the_counts() {
        let breakers = RepeatPenalty::BREAKERS.map(str::to_owned).to_vec();
        let penalty = RepeatPenalty { multiplier: 50.0, base: 1.75, allowed_length: 2, window: None, breakers };
        let mut counts = TokenCounts::default();
        counts.watch_repeats(&penalty, &[0, 1, 2, 0], |_| b"a");
        let params = SamplingParams { temperature: 0.0, repeats: Some(penalty), ..Default::default() };
        let mut sampler = TokenSampler::default();
        let mut choose = |counts: &TokenCounts| {
            sampler.choose(&[0.0, 1.0, 2.0], &params, counts, &[], None, Draw { seed: 0, position: 0 }).unwrap()
        };
        assert_eq!(choose(&counts), 2);
        counts.record(1, b"a");
        assert_eq!(choose(&counts), 1, "2 would continue \"0 1\"");
        counts.record(0, b"\n");
        assert_eq!(choose(&counts), 2);
    }

    #[test]
    fn banned_tokens_are_never_sampled_and_invalid_logits_are_errors() {
        let mut sampler = TokenSampler::default();
        let mut choose = |logits: &[f32], banned: &[TokenId]| {
            let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
            sampler.choose(logits, &greedy, &TokenCounts::default(), banned, None, Draw { seed: 0, position: 0 })
        };
        assert_eq!(choose(&[3.0, 2.0, 1.0], &[0]), Ok(1));
        assert_eq!(choose(&[3.0, f32::NAN, 1.0], &[1]), Err(InvalidLogits::NotFinite(1)));
        assert_eq!(choose(&[3.0], &[0]), Err(InvalidLogits::Empty));
        assert_eq!(choose(&[], &[]), Err(InvalidLogits::Empty));
    }

    /// How often each token is drawn.
    fn shares(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
        const DRAWS: u32 = 20_000;
        let mut sampler = TokenSampler::default();
        let mut drawn = vec![0.0; logits.len()];
        for position in 0..DRAWS.into() {
            let draw = Draw { seed: 5, position };
            let token = sampler.choose(logits, params, &TokenCounts::default(), &[], None, draw).unwrap();
            drawn[token as usize] += f64::from(DRAWS).recip();
        }
        drawn
    }

    #[test]
    fn a_dynamic_temperature_follows_the_entropy_of_the_tokens_that_are_kept() {
        let dynamic = |range, exponent| DynamicTemperature { range, exponent };
        let softmax = |logits: &[f64], temperature: f64| -> Vec<f64> {
            let sum: f64 = logits.iter().map(|logit| (logit / temperature).exp()).sum();
            logits.iter().map(|logit| (logit / temperature).exp() / sum).collect()
        };
        for (logits, exponent) in
            [([2.0, 0.5, 0.0, -9.0], 1.0), ([1.0, 0.9, 0.8, -9.0], 2.0), ([9.0, 0.0, 0.0, -9.0], 0.5)]
        {
            let params = SamplingParams {
                temperature: 1.2,
                dynamic_temperature: dynamic(0.8, exponent as f32),
                top_k: 3,
                ..Default::default()
            };
            let kept = &logits[..3];
            let entropy: f64 = softmax(kept, 1.0).iter().map(|p| -p * p.ln()).sum();
            let temperature = 0.4 + 1.6 * (entropy / 3f64.ln()).powf(exponent);
            let found = shares(&logits.map(|logit| logit as f32), &params);
            assert_eq!(found[3], 0.0, "it is not among the best three");
            for (found, expected) in found.iter().zip(softmax(kept, temperature)) {
                assert!((found - expected).abs() < 0.015, "{found} instead of {expected}, temperature {temperature}");
            }
        }
        // The temperature of a certain model is 0 at the lower end of the range.
        let certain = SamplingParams { dynamic_temperature: dynamic(2.0, 1.0), ..Default::default() };
        assert_eq!(support(&[90.0, 0.0], &certain), [0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn the_sampled_token_is_the_one_that_an_engine_samples(
            logits in prop::collection::vec(-9f32..9.0, 1..700), rounds in any::<bool>(),
            temperature in 0f32..3.0, top_k in 0usize..20, top_p in 0f32..1.0, min_p in 0f32..0.5, which in 0u8..8, seed: u64,
        ) {
            let logits: Vec<f32> = logits.iter().map(|logit| if rounds { logit.round() } else { *logit }).collect();
            let on = |bit: u8| which & bit != 0;
            let params = SamplingParams {
                temperature,
                top_k: if on(1) { top_k } else { 0 },
                top_p: if on(2) { top_p.max(1e-7) } else { 1.0 },
                min_p: if on(4) { min_p } else { 0.0 },
                ..Default::default()
            };
            let draw = Draw { seed, position: 3 };
            let found = TokenSampler::default().choose(&logits, &params, &TokenCounts::default(), &[], None, draw);
            let row_params = params.of_row_alone(draw).unwrap();
            prop_assert_eq!(found, token_of(reference::sample(&logits, &row_params)), "{:?}", params);
        }

        #[test]
        fn a_mask_of_any_size_is_the_same_as_logits_of_minus_infinity(
            logits in prop::collection::vec(-9f32..9.0, 1..700), share in 1usize..12, banned in 0u32..700,
            temperature in 0f32..3.0, top_p in 0.05f32..1.0, which: u8, seed: u64,
        ) {
            let on = |bit: u8| which & bit != 0;
            let params = SamplingParams {
                temperature,
                dynamic_temperature: DynamicTemperature { range: if on(128) { 1.0 } else { 0.0 }, exponent: 1.0 },
                top_p: if on(1) { top_p } else { 1.0 },
                typical_p: if on(2) { 0.7 } else { 1.0 },
                top_k: if on(4) { 5 } else { 0 },
                top_n_sigma: if on(32) { 0.8 } else { 0.0 },
                xtc: TopExclusion { probability: if on(64) { 0.6 } else { 0.0 }, threshold: 0.1 },
                logit_bias: if on(8) { vec![(0, 3.5), (3, -2.0)] } else { Vec::new() },
                ..Default::default()
            };
            let banned = if on(16) { vec![banned] } else { Vec::new() };
            let allows = |token: usize| (seed as usize).wrapping_add(token * token).is_multiple_of(share);
            let mask = TokenMask::of(logits.len(), (0..logits.len()).filter(|&token| allows(token)));
            let draw = Draw { seed, position: 3 };
            let counts = TokenCounts::default();
            let found = TokenSampler::default().choose(&logits, &params, &counts, &banned, Some(&mask), draw);
            let excluded = |token: usize| !allows(token) || banned.contains(&(token as TokenId));
            let row: Vec<f32> = logits.iter().enumerate()
                .map(|(token, &logit)| if excluded(token) { f32::NEG_INFINITY } else { logit })
                .collect();
            prop_assert_eq!(found, TokenSampler::default().choose(&row, &params, &counts, &[], None, draw));
        }

        #[test]
        fn truncations_match_their_definitions(
            // Multiples of 1/4: the order of nearly equal logits would depend on rounding.
            quarters in prop::collection::vec(-36i8..36, 2..700),
            temperature in 0.5f32..2.0, top_k in 0usize..8, top_p in 0.05f32..1.0,
            min_p in 0f32..0.9, typical_p in 0.05f32..1.0, which in 0u8..16,
        ) {
            let logits: Vec<f32> = quarters.into_iter().map(|quarter| f32::from(quarter) / 4.0).collect();
            let on = |bit: u8| which & bit != 0;
            let params = SamplingParams {
                temperature,
                top_k: if on(1) { top_k } else { 0 },
                top_p: if on(2) { top_p } else { 1.0 },
                min_p: if on(4) { min_p } else { 0.0 },
                typical_p: if on(8) { typical_p } else { 1.0 },
                ..Default::default()
            };
            prop_assert_eq!(kept(&logits, &params), reference(&logits, &params), "{:?}", params);
        }

        #[test]
        fn any_logits_and_parameters_give_a_token_or_an_error(
            logits in prop::collection::vec(prop::num::f32::ANY, 0..40),
            temperature in prop::num::f32::ANY, top_k in 0usize..50, top_p in prop::num::f32::ANY,
            min_p in prop::num::f32::ANY, typical_p in prop::num::f32::ANY, index: u64,
        ) {
            let params = SamplingParams { temperature, top_k, top_p, min_p, typical_p, ..Default::default() };
            let draw = Draw { seed: 1, position: index };
            if let Ok(token) = TokenSampler::default().choose(&logits, &params, &TokenCounts::default(), &[], None, draw) {
                prop_assert!((token as usize) < logits.len());
            }
        }
    }
}
