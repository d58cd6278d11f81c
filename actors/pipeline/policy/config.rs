//! Settings of the scheduling policy.

use std::time::Duration;

/// Whether steps verify drafts of several tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpeculationMode {
    /// Where the measured time and acceptance say that it is faster.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Whenever there is a draft, of any source but the draft model.
    Ngram,
    /// Whenever there is a draft. The draft model is asked for one before each step.
    Draft,
}

/// How the policy forms steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Maximum number of tokens of one prompt in a step.
    pub prefill_chunk_tokens: usize,
    /// Target for the time of a step with decode rows. Prompt rows are added to every step until this time is reached.
    ///
    /// `None`: such a step takes up to twice the time of its decode rows, or more when there are more prompts than decode rows.
    /// The average follows the prompts' time budget.
    pub inter_token_target: Option<Duration>,
    /// Target for the time of a step without decode rows.
    pub prefill_step_limit: Duration,
    /// Maximum number of steps that are formed and not yet sampled.
    pub steps_in_flight: usize,
    /// Maximum number of these steps at the executor.
    pub steps_at_executor: usize,
    /// Whether blocks are kept for prompts with the same prefix.
    pub prefix_cache: bool,
    /// Whether the changes of the prefix cache are reported.
    pub reports_cache: bool,
    /// Whether steps verify drafts.
    pub speculation: SpeculationMode,
    /// Maximum number of prompt tokens that may wait. Further requests are refused.
    pub max_queued_tokens: usize,
    /// Whether the invariants are checked after every event, with a panic when one does not hold. Slow; for tests.
    pub verify: bool,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        PolicyConfig {
            prefill_chunk_tokens: usize::MAX,
            inter_token_target: None,
            prefill_step_limit: Duration::from_secs(1),
            steps_in_flight: 2,
            steps_at_executor: 1,
            prefix_cache: true,
            reports_cache: false,
            speculation: SpeculationMode::Auto,
            max_queued_tokens: usize::MAX,
            verify: cfg!(debug_assertions),
        }
    }
}
