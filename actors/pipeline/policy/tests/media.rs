//! Requests with media: rows that take the place of tokens.

use cuelight_engine::engine::{EmbeddingLimits, EmbeddingRows, SequenceRows};

use super::world::{World, hash, hash_input};
use super::*;
use crate::core::prompt_media::{EncodedMedia, MediaRun, PromptMedia};

/// Values of a row.
const WIDTH: usize = 2;

pub(super) const EMBEDDINGS: EmbeddingLimits = EmbeddingLimits { width: WIDTH, deep_layers: 0, leading_rows: 0 };

/// A media item of some rows, which differ from each other and from those of other media.
fn media(number: u64, rows: usize) -> EncodedMedia {
    EncodedMedia::new((0..rows * WIDTH).map(|index| (number * 1000) as f32 + index as f32).collect(), WIDTH)
}

fn run(position: usize, media: &EncodedMedia) -> MediaRun {
    MediaRun { position, rows: 0..media.rows(), media: media.clone(), grid: None }
}

/// One or two of few different media, as far as they fit a prompt.
pub(super) fn random_media(like: u64, prompt_tokens: usize, is_other: bool) -> PromptMedia {
    let number = like / 2 + u64::from(is_other);
    let runs = [run(3 + like as usize * 5, &media(number, 13)), run(41, &media(like, 25))];
    let fit = runs.into_iter().filter(|run| run.positions().end < prompt_tokens);
    PromptMedia::new(fit.collect(), like.is_multiple_of(2))
}

fn input_of(row: &[f32]) -> u64 {
    row.iter().fold(11, |before, value| hash(before, value.to_bits()))
}

/// Makes each input depend on those after it.
fn see_each_other(inputs: &mut [u64]) {
    let mut behind = 0;
    for input in inputs.iter_mut().rev() {
        behind = hash_input(behind, *input);
        *input ^= behind;
    }
}

/// What each row of a step is computed from.
pub(super) fn inputs_of_rows(sequence: &SequenceRows) -> Vec<u64> {
    let mut inputs: Vec<u64> = sequence.tokens.iter().copied().map(u64::from).collect();
    for EmbeddingRows { first, values, range } in &sequence.embeddings {
        for (row, values) in values.chunks_exact(WIDTH).take(range.end).skip(range.start).enumerate() {
            inputs[first + row] = input_of(values);
        }
    }
    if sequence.sees_later {
        assert!(
            sequence.embeddings.iter().map(|rows| rows.range.len()).sum::<usize>() == inputs.len(),
            "only rows of media see later rows"
        );
        see_each_other(&mut inputs);
    }
    inputs
}

/// What each token of a text is computed from.
pub(super) fn inputs_of_tokens(tokens: &[TokenId], media: &PromptMedia) -> Vec<u64> {
    let mut inputs: Vec<u64> = tokens.iter().copied().map(u64::from).collect();
    for run in media.runs() {
        let rows = media.rows_at(run.positions());
        let EmbeddingRows { values, range, .. } = &rows[0];
        let own = &mut inputs[run.positions()];
        for (input, values) in own.iter_mut().zip(values.chunks_exact(WIDTH).take(range.end).skip(range.start)) {
            *input = input_of(values);
        }
        if media.most_rows_at_once() > 0 {
            see_each_other(own);
        }
    }
    inputs
}

fn media_limits() -> EngineLimits {
    EngineLimits { embeddings: Some(EMBEDDINGS), ..large_limits() }
}

fn with_media(submission: Submission, runs: Vec<MediaRun>, see_each_other: bool) -> Submission {
    Submission { media: PromptMedia::new(runs, see_each_other), ..submission }
}

/// The rows of each step of a request that runs alone.
fn rows_of_steps(world: &mut World) -> Vec<usize> {
    let mut rows = Vec::new();
    while let Some(planned) = world.computing.front() {
        rows.push(planned.step.rows());
        world.finish_step();
        world.sample(false);
    }
    world.assert_all_ended();
    rows
}

#[test]
fn rows_that_see_each_other_are_a_chunk_of_their_own() {
    let config = PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG };
    let mut world = World::new(config, media_limits());
    let media = vec![run(37, &media(1, 40)), run(80, &media(2, 30))];
    world.submit(with_media(submission(1, 120), media.clone(), true), 2);
    assert_eq!(rows_of_steps(&mut world), [37, 40, 3, 30, 10, 1]);
    let mut world = World::new(config, media_limits());
    world.submit(with_media(submission(1, 120), media, false), 2);
    assert_eq!(rows_of_steps(&mut world), [64, 56, 1], "causal rows are a part of any chunk");
}

#[test]
fn no_chunk_limit_divides_rows_that_see_each_other() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 7, ..CONFIG }, media_limits());
    world.submit(with_media(submission(1, 60), vec![run(10, &media(1, 40))], true), 1);
    assert_eq!(rows_of_steps(&mut world), [7, 3, 40, 7, 3]);
}

#[test]
fn a_model_that_attends_to_an_encoder_takes_no_other_prompts() {
    let embeddings = Some(EmbeddingLimits { leading_rows: 40, ..EMBEDDINGS });
    let mut policy = Policy::new(CONFIG, EngineLimits { embeddings, ..media_limits() });
    let mut submit = |id: u64, media: Vec<MediaRun>| {
        let submission = Submission { id: RequestId(id), ..submission(1, 100) };
        policy.submit(with_media(submission, media, false)).map(drop)
    };
    let two = vec![run(0, &media(1, 40)), run(50, &media(2, 40))];
    for (id, media) in [vec![], vec![run(1, &media(1, 40))], vec![run(0, &media(1, 39))], two].into_iter().enumerate() {
        let error = submit(id as u64, media).unwrap_err().to_string();
        assert!(error.contains("must start with a recording"), "{error}");
    }
    submit(9, vec![run(0, &media(1, 40))]).unwrap();
    let submission =
        with_media(Submission { id: RequestId(10), ..submission(1, 40) }, vec![run(0, &media(1, 40))], false);
    let error = policy.submit(submission).map(drop).unwrap_err().to_string();
    assert!(error.contains("must have one after the recording"), "{error}");
}

#[test]
fn prompts_share_blocks_up_to_the_first_media_that_differs() {
    let config = PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG };
    for see_each_other in [false, true] {
        let mut world = World::new(config, media_limits());
        let mut rows = |id: u64, media: Vec<MediaRun>| {
            let before = world.rows_computed;
            let submission = Submission { id: RequestId(id), ..submission(1, 100) };
            world.submit(with_media(submission, media, see_each_other), 1);
            world.run_out();
            world.rows_computed - before
        };
        let (one, two) = (|| run(40, &media(1, 20)), || run(40, &media(2, 20)));
        assert_eq!(rows(1, vec![one()]), 100);
        assert_eq!(rows(2, vec![one()]), 4, "the same media item is the same prefix");
        assert_eq!(rows(3, vec![two()]), 100 - 32, "another media item shares the text before it");
        assert_eq!(rows(4, vec![]), 100 - 32, "and so does a prompt without one");
        assert_eq!(rows(5, vec![one(), run(70, &media(2, 5))]), 100 - 64, "both media count");
        assert_eq!(rows(6, vec![run(41, &media(1, 20))]), 100 - 32, "at another place it is another prefix");
    }
}

#[test]
fn a_prefix_may_end_within_a_media_item() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, media_limits());
    let of = |id: u64, tail: TokenId| {
        let mut prompt = submission(1, 80).prompt;
        prompt[70..].fill(tail);
        Submission { prompt, ..submission(id, 80) }
    };
    world.submit(with_media(of(1, 1), vec![run(30, &media(1, 40))], true), 1);
    world.run_out();
    world.submit(with_media(of(2, 2), vec![run(30, &media(1, 40))], true), 1);
    assert_eq!(rows_of_steps(&mut world), [6, 10], "of the 40 rows 34 are in the cache");
}

#[test]
fn requests_with_other_media_do_not_wait_for_each_other() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 32, steps_in_flight: 2, ..CONFIG }, media_limits());
    for id in 1..=4 {
        let submission = Submission { id: RequestId(id), ..submission(1, 100) };
        world.submit(with_media(submission, vec![run(4, &media(id % 2, 20))], true), 1);
    }
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.rows_computed, 2 * 100 + 2 * 4, "each media item is computed once");
}

#[test]
fn images_that_do_not_fit_are_refused_with_the_reason() {
    let mut policy = Policy::new(CONFIG, media_limits());
    let mut refused = |submission: Submission| match policy.submit(submission) {
        Err(SubmitError::InvalidPrompt(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let large = with_media(submission(1, 400), vec![run(1, &media(1, 300))], true);
    assert!(refused(large).contains("at most 256"));
    let behind = with_media(submission(2, 10), vec![run(5, &media(1, 6))], false);
    assert!(refused(behind).contains("not those of this prompt"));
    let wide = EncodedMedia::new(vec![0.0; 9].into(), 3);
    assert!(refused(with_media(submission(3, 10), vec![run(5, &wide)], false)).contains("and model"));
    let scored = Submission { scores_prompt: true, ..with_media(submission(4, 10), vec![run(5, &media(1, 2))], false) };
    assert!(refused(scored).contains("log-probabilities"));
    let mut policy = Policy::new(CONFIG, large_limits());
    let none = policy.submit(with_media(submission(5, 10), vec![run(5, &media(1, 2))], false));
    assert!(matches!(none, Err(SubmitError::InvalidPrompt(reason)) if reason.contains("takes no media")));
}

#[test]
fn a_media_item_waits_for_no_short_prompts_and_no_drafts_that_fill_the_step() {
    let limits = EngineLimits { max_batched_tokens: 64, ..media_limits() };
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, limits);
    world.submit(with_media(submission(1, 100), vec![run(20, &media(1, 50))], true), 1);
    for id in 2..=7 {
        world.submit(submission(id, 30), 1);
    }
    let mut steps = 0;
    while world.requests[&RequestId(1)].end.is_none() {
        world.finish_step();
        world.sample(false);
        steps += 1;
        assert!(steps < 12, "the media item waits for the prompts behind it");
    }
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn the_draft_model_is_not_asked_about_media() {
    let config = PolicyConfig { prefill_chunk_tokens: 512, speculation: SpeculationMode::Draft, ..CONFIG };
    let mut world = World::new(config, media_limits());
    world.draft_model = Some(DraftModel { accuracy: 100, token_time: Duration::from_micros(1), asked: Vec::new() });
    world.on(PolicyEvent::DrafterReady);
    world.submit(with_media(submission(1, 40), vec![run(5, &media(1, 6))], false), 10);
    world.submit(submission(2, 40), 10);
    world.run_out();
    world.assert_all_ended();
    let asked = world.draft_model.map(|model| model.asked).unwrap_or_default();
    assert!(asked.contains(&RequestId(2)) && !asked.contains(&RequestId(1)), "{asked:?}");
}
