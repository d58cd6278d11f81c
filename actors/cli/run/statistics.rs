//! What is said about an answer after it: its statistics, and which limit cut it off.

use crate::core::request::{FinishReason, Usage};

/// Which limit ended an answer before the model did.
pub fn limit_reached(usage: &Usage, max_tokens: Option<usize>) -> &'static str {
    match max_tokens {
        Some(most) if usage.completion_tokens >= most => "the answer was cut off: it reached --max-tokens",
        _ => "the answer was cut off: the context is full; a larger --ctx-size would help",
    }
}

/// One line: "[34 prompt tokens (12 cached), first token after 0.21 s, 45 tokens at 38.1 tok/s, context 79 of 2048]".
pub fn statistics(reason: &FinishReason, usage: &Usage, context_tokens: usize) -> String {
    let cached = if usage.cached_tokens > 0 { format!(" ({} cached)", usage.cached_tokens) } else { String::new() };
    let first = usage.time_to_first_token.as_secs_f64();
    let used = usage.prompt_tokens + usage.completion_tokens;
    // The time to the first token is prompt processing; the speed is that of the later tokens.
    let seconds = usage.generation_time.as_secs_f64();
    let speed = match usage.completion_tokens {
        count @ 2.. if seconds > 0.0 => format!(" at {:.1} tok/s", (count - 1) as f64 / seconds),
        _ => String::new(),
    };
    let end = if *reason == FinishReason::Length { ", stopped at the limit" } else { "" };
    format!(
        "[{} prompt tokens{cached}, first token after {first:.2} s, {} tokens{speed}, context {used} of {context_tokens}{end}]",
        usage.prompt_tokens, usage.completion_tokens
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statistics_contain_prompt_cache_and_speed() {
        let usage = Usage {
            prompt_tokens: 34,
            cached_tokens: 12,
            completion_tokens: 41,
            time_to_first_token: Duration::from_millis(210),
            generation_time: Duration::from_secs(2),
            ..Usage::default()
        };
        assert_eq!(
            statistics(&FinishReason::Length, &usage, 2048),
            "[34 prompt tokens (12 cached), first token after 0.21 s, 41 tokens at 20.0 tok/s, context 75 of 2048, \
             stopped at the limit]"
        );
    }

    #[test]
    fn a_cut_answer_names_the_limit_that_it_reached() {
        let usage = Usage { completion_tokens: 8, ..Usage::default() };
        assert!(limit_reached(&usage, Some(8)).ends_with("--max-tokens"));
        for max_tokens in [None, Some(9)] {
            assert!(limit_reached(&usage, max_tokens).contains("--ctx-size"));
        }
    }

    #[test]
    fn a_single_token_has_no_speed() {
        let usage = Usage { prompt_tokens: 1, completion_tokens: 1, ..Usage::default() };
        assert_eq!(
            statistics(&FinishReason::StopToken(0), &usage, 8),
            "[1 prompt tokens, first token after 0.00 s, 1 tokens, context 2 of 8]"
        );
    }
}
