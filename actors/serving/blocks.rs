//! What models cannot do that generate blocks of tokens: whatever needs the logits of one token after the other.

use super::error::ApiError;
use super::options::GenerationOptions;
use super::request::{ConstraintField, OutputOptions, ToolChoice};
use crate::core::request::SamplingParams;

/// Checks that a request asks a model of blocks for nothing that it cannot do.
///
/// # Errors
/// [`ApiError::Unsupported`] with the first field that it cannot do.
pub(super) fn check(
    name: &str,
    options: &GenerationOptions,
    constraint: Option<&ConstraintField>,
    output: &OutputOptions,
) -> Result<(), ApiError> {
    let asks_for = [
        (constraint.is_some(), constraint.map_or("", |constraint| &constraint.path)),
        (output.tool_choice == ToolChoice::Required, "tool_choice"),
        (output.tool_choice == ToolChoice::Auto && output.tools.iter().any(|tool| tool.is_strict), "tools"),
        (output.reasoning_budget.is_some(), "reasoning_budget"),
        (options.logprobs.is_some(), "logprobs"),
        (options.prompt_logprobs.is_some(), "prompt_logprobs"),
        (options.best_of > options.n, "best_of"),
        (options.stop.min_tokens > 0, "min_tokens"),
        (!options.speculation.prediction.is_empty(), "prediction"),
        (!options.bad_words.is_empty(), "bad_words"),
    ];
    let asks_for = asks_for.into_iter().find_map(|(asks, field)| asks.then_some(field));
    match asks_for.or_else(|| changed_logits(&options.sampling)) {
        None => Ok(()),
        Some(field) => {
            let message = format!(
                "the model `{name}` generates blocks of tokens, so `{field}` is not supported; leave it out of the request"
            );
            Err(ApiError::Unsupported { param: field.to_owned(), message })
        }
    }
}

/// The first parameter that changes logits by the tokens before them, or keeps tokens by more than their rank and probability.
fn changed_logits(sampling: &SamplingParams) -> Option<&'static str> {
    let changes = [
        (sampling.repetition_penalty != 1.0, "repetition_penalty"),
        (sampling.presence_penalty != 0.0, "presence_penalty"),
        (sampling.frequency_penalty != 0.0, "frequency_penalty"),
        (sampling.repeats.is_some(), "dry_multiplier"),
        (!sampling.logit_bias.is_empty(), "logit_bias"),
        (sampling.allowed_tokens.is_some(), "allowed_token_ids"),
        (sampling.dynamic_temperature.range > 0.0, "dynatemp_range"),
        (sampling.typical_p < 1.0, "typical_p"),
        (sampling.top_n_sigma > 0.0, "top_n_sigma"),
        (sampling.xtc.probability > 0.0, "xtc_probability"),
    ];
    changes.into_iter().find_map(|(changes, field)| changes.then_some(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::tenancy::Tenancy;

    #[test]
    fn what_needs_logits_is_refused_by_its_name() {
        let refused = |change: fn(&mut GenerationOptions)| {
            let mut options = GenerationOptions::new(Tenancy::default());
            change(&mut options);
            match check("m", &options, None, &OutputOptions::plain()) {
                Ok(()) => String::new(),
                Err(ApiError::Unsupported { param, .. }) => param,
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(refused(|_| {}), "");
        assert_eq!(refused(|options| options.sampling.top_k = 5), "", "it applies to each row");
        assert_eq!(refused(|options| options.logprobs = Some(0)), "logprobs");
        assert_eq!(refused(|options| options.sampling.presence_penalty = 0.1), "presence_penalty");
        assert_eq!(refused(|options| options.sampling.logit_bias = vec![(1, 1.0)]), "logit_bias");
        assert_eq!(refused(|options| options.stop.min_tokens = 1), "min_tokens");
        assert_eq!(refused(|options| options.best_of = 2), "best_of");
    }
}
