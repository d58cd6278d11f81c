//! Samples tokens from logits.
//!
//! Every function here is a pure function of the logits, the parameters, the tokens of the sequence, a seed and the token's
//! index. Sampling the same position again after a preemption or a fault therefore gives the same token.
//!
//! [`penalties`] and bias change the logits first. [`TokenSampler::choose`] then truncates the distribution and draws from
//! it. [`logprobs`] reports how likely a token was before any of these changes.
//!
//! [`denoise`] makes blocks of tokens, for models that generate these.
//!
//! An engine may sample tokens itself when the result depends on one row of logits only ([`SamplingParams::of_row_alone`]).
//! It returns the same token: both use the formula of [`cuelight_shaders::sample_token`], whose integer sums do not depend
//! on the order of summation.

pub mod denoise;
mod draw;
mod error;
mod exp;
pub mod logprobs;
mod params;
mod partial;
pub mod penalties;
mod repeats;
pub mod token_sampler;

pub use cuelight_shaders::sample_token::reference::sample as choose_by_row;
pub use denoise::{Block, Denoised, Denoising, DenoisingRule};
pub use draw::Draw;
pub use error::InvalidLogits;
pub use logprobs::{Alternatives, PositionLogprobs, TokenLogprob, position_logprobs};
pub use params::{DynamicTemperature, InvalidSamplingParam, JointTokens, SamplingParams, TopExclusion};
pub use partial::{PartialSampling, RecommendedSampling};
pub use penalties::TokenCounts;
pub use repeats::RepeatPenalty;
pub use token_sampler::{TokenSampler, token_of};
