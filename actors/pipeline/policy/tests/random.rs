//! Random actions in the simulation: every request ends once, with the right tokens.

use cuelight_engine::engine::{HiddenLimits, HiddenRows, WindowLimits};
use cuelight_engine::memory::WindowNeeds;
use proptest::prelude::*;

use super::media::{EMBEDDINGS, random_media};
use super::tiers::peer;
use super::*;
use crate::core::prompt_media::PromptMedia;

const SPECULATION: &[SpeculationMode] =
    &[SpeculationMode::Off, SpeculationMode::Auto, SpeculationMode::Ngram, SpeculationMode::Draft];

/// What a request wants of its prompt, next to the token after it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    Nothing,
    Logits,
    /// Instead of a text.
    Hidden(HiddenRows),
}

/// A random action in the simulation.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Submit { like: u64, prompt_tokens: usize, generate: usize, priority: i32, salted: bool, wanted: Wanted },
    Cancel(u64),
    FinishStep,
    Sample { pause: bool },
    Deliver,
    Resume(u64),
    Draft,
    LoseDraftModel,
    LoseExecutor { named: bool },
    RefuseStep,
    RestartExecutor,
    ReplaceScheduler { suspects: bool, paused: bool },
    KeepStored,
    RefuseStored { is_full: bool },
    Fetch { most: usize },
    FetchTimesOut,
}

pub(super) fn action() -> impl Strategy<Value = Action> {
    let wanted = prop_oneof![
        6 => Just(Wanted::Nothing),
        2 => Just(Wanted::Logits),
        1 => Just(Wanted::Hidden(HiddenRows::All)),
        1 => Just(Wanted::Hidden(HiddenRows::Last)),
    ];
    let submit = (0u64..4, 1usize..100, 1usize..60, 0i32..2, any::<bool>(), wanted).prop_map(
        |(like, prompt_tokens, generate, priority, salted, wanted)| Action::Submit {
            like,
            prompt_tokens,
            generate,
            priority,
            salted,
            wanted,
        },
    );
    prop_oneof![
        6 => submit,
        2 => (1u64..20).prop_map(Action::Cancel),
        30 => Just(Action::FinishStep),
        30 => prop::bool::weighted(0.1).prop_map(|pause| Action::Sample { pause }),
        30 => Just(Action::Deliver),
        4 => (1u64..20).prop_map(Action::Resume),
        20 => Just(Action::Draft),
        1 => Just(Action::LoseDraftModel),
        1 => any::<bool>().prop_map(|named| Action::LoseExecutor { named }),
        1 => Just(Action::RefuseStep),
        2 => Just(Action::RestartExecutor),
        20 => Just(Action::KeepStored),
        1 => any::<bool>().prop_map(|is_full| Action::RefuseStored { is_full }),
        20 => prop::sample::select(vec![0, 1, 3, usize::MAX]).prop_map(|most| Action::Fetch { most }),
        1 => Just(Action::FetchTimesOut),
        1 => any::<(bool, bool)>().prop_map(|(suspects, paused)| Action::ReplaceScheduler { suspects, paused }),
    ]
}

impl World {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Submit { like, prompt_tokens, generate, priority, salted, wanted } => {
                let hidden = match wanted {
                    Wanted::Hidden(rows) if self.limits.hidden.width > 0 => Some(rows),
                    _ => None,
                };
                let media = match hidden {
                    None if self.limits.embeddings.is_some() => random_media(like, prompt_tokens, priority > 0),
                    _ => PromptMedia::default(),
                };
                // There are few different prompts, so that many have a prefix in common.
                let submission = Submission {
                    id: RequestId(self.requests.len() as u64 + 1),
                    priority,
                    scores_prompt: matches!(wanted, Wanted::Logits) && self.denoising.is_none() && media.is_empty(),
                    media,
                    hidden,
                    reports_progress: salted,
                    client: Some(like.to_string().into()),
                    scope: PrefixScope { salt: salted.then(|| "salt".into()), adapter: None },
                    kv_transfer: KvTransfer { from: (like % 2 == 0).then(peer), shared_at: (like % 3 == 0).then(peer) },
                    ..submission(like, prompt_tokens)
                };
                self.submit(submission, if hidden.is_some() { 0 } else { generate });
            }
            Action::Cancel(id) => self.on(PolicyEvent::Cancel(RequestId(id))),
            Action::FinishStep => self.finish_step(),
            Action::Sample { pause } => self.sample_tokens(pause),
            Action::Deliver => self.deliver(),
            Action::Resume(id) => self.on(PolicyEvent::Resume(RequestId(id))),
            Action::Draft => drop(self.draft()),
            Action::LoseDraftModel => self.lose_draft_model(),
            Action::LoseExecutor { named } => {
                if self.ready {
                    self.lose_executor(named);
                }
            }
            Action::RefuseStep => self.refuse_step(),
            Action::RestartExecutor => self.restart_executor(),
            Action::ReplaceScheduler { suspects, paused } => self.replace_scheduler(suspects, paused),
            Action::KeepStored => self.keep_stored(),
            Action::RefuseStored { is_full } => self.refuse_stored(is_full),
            Action::Fetch { most } => self.fetch(most),
            Action::FetchTimesOut => self.fetch_times_out(),
        }
    }
}

/// A suspect and a request before it in rank order both need several steps, and there are blocks for only one of them.
/// They must not preempt each other forever.
#[test]
fn a_suspect_and_a_request_before_it_both_end() {
    use Action::{Deliver, FinishStep, LoseExecutor, Sample};
    let submit = |prompt_tokens, priority, scores_prompt| Action::Submit {
        like: 0,
        prompt_tokens,
        generate: 1,
        priority,
        salted: false,
        wanted: if scores_prompt { Wanted::Logits } else { Wanted::Nothing },
    };
    let (sampled, paused) = (|| Sample { pause: false }, || Sample { pause: true });
    let actions = vec![
        submit(33, 1, true),
        FinishStep,
        FinishStep,
        FinishStep,
        paused(),
        submit(25, 0, true),
        sampled(),
        sampled(),
        Deliver,
        Deliver,
        FinishStep,
        submit(81, 1, false),
        Deliver,
        FinishStep,
        sampled(),
        Deliver,
        paused(),
        FinishStep,
        FinishStep,
        Deliver,
        LoseExecutor { named: false },
        submit(1, 0, false),
        submit(81, 0, false),
    ];
    let config = PolicyConfig {
        prefill_chunk_tokens: 512,
        steps_in_flight: 3,
        steps_at_executor: 1,
        prefix_cache: false,
        ..CONFIG
    };
    let mut world = World::new(config, EngineLimits { kv_blocks: 10, ..limits() });
    world.stops = true;
    actions.into_iter().for_each(|action| world.act(action));
    world.run_out();
    world.assert_all_ended();
}

/// A suspect needs the blocks of all others, which hold the cached blocks of its prefix too. After they were preempted it must
/// be admitted, because no step is in flight whose end would admit it later.
#[test]
fn a_suspect_runs_after_those_that_share_its_prefix_were_preempted() {
    let submit = |prompt_tokens, generate, salted| Action::Submit {
        like: 0,
        prompt_tokens,
        generate,
        priority: 0,
        salted,
        wanted: Wanted::Nothing,
    };
    let config = PolicyConfig { prefill_chunk_tokens: 1, ..CONFIG };
    let mut world = World::new(config, EngineLimits { kv_blocks: 8, state_slots: 2, ..limits() });
    let actions = [submit(48, 3, false), submit(48, 3, true), submit(97, 1, false), submit(1, 1, false)];
    actions.into_iter().for_each(|action| world.act(action));
    world.replace_scheduler(true, false);
    world.run_out();
    world.assert_all_ended();
}

/// Window blocks for one sequence and the steps, and `more` of them.
fn windows_of(limits: &EngineLimits, positions: usize, more: usize) -> WindowLimits {
    let (max_sequences, max_batched_tokens) = (limits.max_sequences, limits.max_batched_tokens);
    let needs = WindowNeeds { positions, max_sequences, max_batched_tokens };
    WindowLimits { positions, blocks: needs.blocks_of_sequence() + needs.blocks_of_steps() + more }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_request_ends_once_with_the_right_tokens_and_no_block_is_lost(
        actions in prop::collection::vec(action(), 1..400),
        chunk in prop::sample::select(vec![1usize, 7, 512]),
        steps_in_flight in 1usize..4,
        steps_at_executor in 1usize..3,
        prefix_cache in any::<bool>(),
        kv_blocks in 8usize..40,
        state_slots in prop::sample::select(vec![0usize, 1, 2, 3, 8, 40]),
        speculation in prop::sample::select(SPECULATION),
        repeats in any::<bool>(),
        forces in any::<bool>(),
        accuracy in prop::option::of(prop::sample::select(vec![0u64, 80, 100])),
        tiers in [0usize..30, 0usize..60],
        takes_media in any::<bool>(),
        has_no_kv in prop::bool::weighted(0.2),
        window in prop::option::of((1usize..60, 0usize..30)),
    ) {
        let config = PolicyConfig {
            prefill_chunk_tokens: chunk, steps_in_flight, steps_at_executor, prefix_cache, speculation, ..CONFIG
        };
        let hidden = HiddenLimits { width: 4, max_rows: 8, ..HiddenLimits::default() };
        let embeddings = takes_media.then_some(EMBEDDINGS);
        let mut limits = EngineLimits { kv_blocks, state_slots, hidden, embeddings, ..limits() };
        let has_no_kv = has_no_kv && state_slots > 0;
        limits.window = window.filter(|_| !has_no_kv).map(|(positions, more)| windows_of(&limits, positions, more));
        let mut world = World::new(config, limits);
        world.stops = true;
        world.repeats = repeats;
        world.forces = forces;
        world.has_no_kv = has_no_kv;
        world.start_tiers(tiers);
        if let Some(accuracy) = accuracy {
            world.draft_model = Some(DraftModel { accuracy, token_time: Duration::from_micros(100), asked: Vec::new() });
            world.on(PolicyEvent::DrafterReady);
        }
        actions.into_iter().for_each(|action| world.act(action));
        world.run_out();
        world.assert_all_ended();
        for (id, state) in &world.requests {
            // The tokens were checked row by row. A request that was not stopped has all of them.
            let stopped = state.tokens.len() > state.prompt_tokens
                && state.tokens.last().is_some_and(|token| token.is_multiple_of(97));
            prop_assert!(state.end != Some(End::Sampled) || state.tokens.len() == state.until || stopped, "{:?}", id);
        }
    }
}
