//! Block diffusion: a block of tokens begins as random tokens and becomes text in some steps, each of which predicts all of them.
//!
//! Everything here is a pure function of the rule, the request's seed, the position of the block, and what the engine returned. So
//! a block that is begun again, after a fault, becomes the same text.
//!
//! Source: transformers' `DiffusionGemmaForBlockDiffusion` (the schedule, the sampler and the stopping rule); Ben-Hamu et al. 2025
//! (arXiv:2505.24857) for the bound on the entropy.

use super::draw::Draw;
use super::error::InvalidLogits;
use super::token_sampler::token_of;
use crate::engine::{Canvas, DenoisedRow, RowSamplingParams, TokenId};

/// How blocks are denoised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenoisingRule {
    /// Tokens of a block, at least one.
    pub tokens: usize,
    /// Most steps for a block, at least one.
    pub max_steps: usize,
    /// The temperature that the last step approaches, above 0.
    pub least_temperature: f32,
    /// The temperature of the first step.
    pub greatest_temperature: f32,
    /// Of the tokens in the order of their entropy, those are kept before which the entropies sum to at most this, in nats.
    pub entropy_bound: f32,
    /// For how many steps the most likely tokens must be the same.
    pub stable_steps: usize,
    /// The mean entropy, in nats, below which a block is finished if it is stable.
    pub confident_entropy: f32,
}

/// How the blocks of a request are denoised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Denoising {
    /// The model's rule.
    pub rule: DenoisingRule,
    /// How a token is sampled from a row. Its temperature is a factor on those of the rule; 0 takes the most likely token.
    pub sampling: RowSamplingParams,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
}

/// A block that is being denoised.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The position of its first token in the sequence.
    pub position: usize,
    /// The steps so far.
    pub steps: usize,
    /// Its tokens before the next step.
    pub tokens: Vec<TokenId>,
    /// The most likely tokens of the last steps, the newest last: at most as many as have to be the same.
    best: Vec<Vec<TokenId>>,
}

/// What a step of denoising makes of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Denoised {
    /// It needs another step.
    Again(Block),
    /// Its tokens.
    Finished(Vec<TokenId>),
}

/// What a random number of a row is for.
#[derive(Clone, Copy)]
enum Purpose {
    /// The token of the row before its next step.
    Noise,
    /// The token that is sampled from the row.
    Sample,
}

impl Denoising {
    /// The block at a position of the sequence, before its first step.
    #[must_use]
    pub fn begin(&self, position: usize) -> Block {
        let tokens = (0..self.rule.tokens).map(|row| self.noise(position, 0, row)).collect();
        Block { position, steps: 0, tokens, best: Vec::new() }
    }

    /// What the engine needs to know about the next step of a block.
    #[must_use]
    pub fn canvas(&self, block: &Block) -> Canvas {
        let DenoisingRule { max_steps, least_temperature, greatest_temperature, .. } = self.rule;
        // The temperature of step n of N is that of N - n steps that are left.
        let left = (max_steps - block.steps.min(max_steps)) as f32 / max_steps as f32;
        let scheduled = least_temperature + (greatest_temperature - least_temperature) * left;
        let factor = self.sampling.temperature;
        let draw = |row| self.random(Purpose::Sample, block.position, block.steps, row);
        Canvas {
            temperature: if factor > 0.0 { scheduled * factor } else { scheduled },
            sampling: RowSamplingParams { temperature: scheduled * factor, ..self.sampling },
            draws: (0..block.tokens.len()).map(draw).collect(),
        }
    }

    /// A block after a step that returned `rows`, one for each of its tokens.
    ///
    /// # Errors
    /// [`InvalidLogits`] when a row is not a distribution.
    pub fn advance(&self, mut block: Block, rows: &[DenoisedRow]) -> Result<Denoised, InvalidLogits> {
        if rows.len() != block.tokens.len() {
            return Err(InvalidLogits::Empty);
        }
        let sampled = rows.iter().map(|row| token_of(row.sampled)).collect::<Result<Vec<_>, _>>()?;
        let best: Vec<TokenId> = rows.iter().map(|row| row.best).collect();
        block.steps += 1;
        if block.steps >= self.rule.max_steps || self.is_finished(&block, &best, rows) {
            return Ok(Denoised::Finished(best));
        }
        let keeps = self.keeps(rows);
        let noise = |row| self.noise(block.position, block.steps, row);
        let tokens = keeps.iter().zip(sampled).enumerate();
        block.tokens = tokens.map(|(row, (keeps, sampled))| if *keeps { sampled } else { noise(row) }).collect();
        block.best.push(best);
        let old = block.best.len().saturating_sub(self.rule.stable_steps);
        block.best.drain(..old);
        Ok(Denoised::Again(block))
    }

    /// Whether the most likely tokens have been the same for long enough, and the rows are confident.
    fn is_finished(&self, block: &Block, best: &[TokenId], rows: &[DenoisedRow]) -> bool {
        let is_stable = block.best.len() >= self.rule.stable_steps && block.best.iter().all(|before| before == best);
        let entropy: f64 = rows.iter().map(|row| f64::from(row.entropy)).sum();
        is_stable && entropy / (rows.len() as f64) < f64::from(self.rule.confident_entropy)
    }

    /// Which rows keep their sampled tokens: the most certain ones, as long as the entropies of those before them are within the
    /// bound.
    fn keeps(&self, rows: &[DenoisedRow]) -> Vec<bool> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| rows[*a].entropy.total_cmp(&rows[*b].entropy));
        let (mut keeps, mut before) = (vec![false; rows.len()], 0.0);
        for row in order {
            if before > f64::from(self.rule.entropy_bound) {
                break;
            }
            keeps[row] = true;
            before += f64::from(rows[row].entropy);
        }
        keeps
    }

    /// A token that is uniformly distributed over the vocabulary.
    fn noise(&self, position: usize, steps: usize, row: usize) -> TokenId {
        let random = self.random(Purpose::Noise, position, steps, row);
        ((u128::from(random) * self.vocab_size as u128) >> 64) as TokenId
    }

    /// The random number of a row. Tokens of answers have draws of one seed, and each step and purpose here has another.
    fn random(&self, purpose: Purpose, position: usize, steps: usize, row: usize) -> u64 {
        let stream = Draw { seed: self.seed, position: (steps as u64) << 1 | purpose as u64 };
        Draw { seed: stream.random(), position: (position + row) as u64 }.random()
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SampledToken;

    const RULE: DenoisingRule = DenoisingRule {
        tokens: 3,
        max_steps: 4,
        least_temperature: 0.4,
        greatest_temperature: 0.8,
        entropy_bound: 0.1,
        stable_steps: 1,
        confident_entropy: 0.005,
    };

    fn denoising() -> Denoising {
        let sampling = RowSamplingParams { temperature: 1.0, ..RowSamplingParams::GREEDY };
        Denoising { rule: RULE, sampling, seed: 7, vocab_size: 100 }
    }

    fn rows(rows: [(TokenId, TokenId, f32); 3]) -> Vec<DenoisedRow> {
        rows.map(|(best, sampled, entropy)| DenoisedRow { best, sampled: SampledToken::Token(sampled), entropy }).into()
    }

    fn again(denoised: Denoised) -> Block {
        let Denoised::Again(block) = denoised else { panic!("{denoised:?}") };
        block
    }

    #[test]
    fn a_block_begins_as_random_tokens_that_follow_from_seed_and_position() {
        let of = |seed, position| Denoising { seed, ..denoising() }.begin(position).tokens;
        assert_eq!(of(7, 5), of(7, 5));
        assert!(of(7, 5) != of(8, 5) && of(7, 5) != of(7, 6));
        let wide = Denoising { rule: DenoisingRule { tokens: 10_000, ..RULE }, ..denoising() }.begin(0).tokens;
        let mean = wide.iter().map(|token| f64::from(*token)).sum::<f64>() / 10_000.0;
        assert!(wide.iter().all(|token| *token < 100) && (mean - 49.5).abs() < 2.0, "{mean}");
    }

    #[test]
    fn the_temperature_falls_with_each_step() {
        let mut block = denoising().begin(0);
        let temperatures = [0, 1, 2, 3].map(|steps| {
            block.steps = steps;
            (denoising().canvas(&block).temperature * 1000.0).round()
        });
        assert_eq!(temperatures, [800.0, 700.0, 600.0, 500.0]);
        let sampling = RowSamplingParams { temperature: 0.5, ..denoising().sampling };
        let half = Denoising { sampling, ..denoising() }.canvas(&denoising().begin(0));
        assert_eq!((half.temperature, half.sampling.temperature), (0.4, 0.4));
        let greedy = Denoising { sampling: RowSamplingParams::GREEDY, ..denoising() }.canvas(&denoising().begin(0));
        assert_eq!((greedy.temperature, greedy.sampling.temperature), (0.8, 0.0));
    }

    #[test]
    fn the_most_certain_tokens_are_kept_up_to_the_bound_and_the_others_drawn_again() {
        let block = denoising().begin(9);
        let next =
            again(denoising().advance(block.clone(), &rows([(1, 11, 0.07), (2, 12, 0.5), (3, 13, 0.02)])).unwrap());
        assert_eq!(
            (next.tokens[0], next.tokens[1], next.tokens[2], next.steps),
            (11, 12, 13, 1),
            "0.09 come before the last"
        );
        let next = again(denoising().advance(block, &rows([(1, 11, 0.2), (2, 12, 0.5), (3, 13, 0.02)])).unwrap());
        assert_eq!((next.tokens[0], next.tokens[2]), (11, 13));
        assert_eq!(next.tokens[1], denoising().noise(9, 1, 1));
    }

    #[test]
    fn a_block_is_finished_when_it_is_stable_and_confident_or_out_of_steps() {
        let certain = rows([(1, 11, 0.001), (2, 12, 0.001), (3, 13, 0.001)]);
        let block = again(denoising().advance(denoising().begin(0), &certain).unwrap());
        assert_eq!(denoising().advance(block.clone(), &certain).unwrap(), Denoised::Finished(vec![1, 2, 3]));
        let other = rows([(1, 11, 0.001), (9, 12, 0.001), (3, 13, 0.001)]);
        let block = again(denoising().advance(block, &other).unwrap());
        let unsure = rows([(1, 11, 0.001), (9, 12, 0.1), (3, 13, 0.001)]);
        let block = again(denoising().advance(block, &unsure).unwrap());
        assert_eq!(block.steps, 3);
        let last = denoising().advance(block, &rows([(4, 11, 1.0), (5, 12, 1.0), (6, 13, 1.0)])).unwrap();
        assert_eq!(last, Denoised::Finished(vec![4, 5, 6]));
    }

    #[test]
    fn rows_that_are_no_distribution_are_an_error() {
        let block = denoising().begin(0);
        assert_eq!(denoising().advance(block.clone(), &[]).unwrap_err(), InvalidLogits::Empty);
        let mut bad = rows([(1, 1, 0.0); 3]);
        bad[1].sampled = SampledToken::NotFinite(8);
        assert_eq!(denoising().advance(block, &bad).unwrap_err(), InvalidLogits::NotFinite(8));
    }
}
