//! One sequence at the sampler, fed with rows that leave no choice.
#![allow(clippy::unwrap_used)]

use cuelight_engine::engine::{Chosen, TokenId};
use cuelight_engine::sample::Chooser;

use super::sequence::{Advance, Computed, SequenceSampler};
use super::*;
use crate::client::{ClientStream, channel};
use crate::policy::Verdict;
use crate::request::{SamplingParams, StopConditions};
use crate::simulation::tokenizer;

/// A sequence at the sampler, with its client.
struct Stage {
    sequence: SequenceSampler,
    client: ClientStream,
    tokenizer: Arc<Tokenizer>,
}

impl Stage {
    fn new(prompt: &str, stop: StopConditions, change: impl FnOnce(&mut GenerationRequest)) -> Self {
        let tokenizer = tokenizer();
        let mut request = GenerationRequest {
            prompt: tokenizer.encode(prompt, false, false).unwrap(),
            sampling: SamplingParams { temperature: 0.0, ..Default::default() },
            stop,
            skip_special_tokens: true,
            ..GenerationRequest::default()
        };
        change(&mut request);
        let (sink, client) = channel(64);
        Stage { sequence: SequenceSampler::new(request, 100, sink, Instant::now()), client, tokenizer }
    }

    /// A row in which these tokens are the most likely, best first.
    fn row(&self, best: &[TokenId]) -> Vec<f32> {
        let mut row = vec![0.0; self.tokenizer.vocab_size()];
        for (place, &token) in best.iter().enumerate() {
            row[token as usize] = 10.0 - place as f32;
        }
        row
    }

    fn advance(&mut self, task: SampleTask, logits: &[f32]) -> Advance {
        let choice = self.sequence.choose(&task, Computed::Logits(logits), &mut Chooser::default(), &self.tokenizer);
        self.sequence.deliver(choice, &self.tokenizer)
    }

    /// Feeds tokens until the sequence ends; the reason and all of the text.
    async fn speak(mut self, tokens: &[TokenId]) -> (FinishReason, String) {
        for (index, &token) in tokens.iter().enumerate() {
            let row = self.row(&[token, 33]);
            let task =
                SampleTask { id: RequestId(1), rows: 1, first_position: index, scores_prompt: false, samples: true };
            if let Some(Event::Finished { reason, text, .. }) = self.advance(task, &row).end {
                drop(self.sequence);
                let mut all = String::new();
                while let Some(Event::Token { text, .. }) = self.client.next().await {
                    all.push_str(&text);
                }
                return (reason, all + &text);
            }
        }
        panic!("it did not end");
    }
}

fn tokens(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, false, false).unwrap()
}

fn end() -> TokenId {
    tokenizer().end_of_generation()[0]
}

fn stop(max_tokens: usize) -> StopConditions {
    StopConditions { max_tokens, ..Default::default() }
}

async fn check(stop: StopConditions, spoken: &[TokenId], reason: FinishReason, text: &str) {
    let stage = Stage::new("hi", stop, |_| {});
    assert_eq!(stage.speak(spoken).await, (reason, text.to_owned()));
}

#[tokio::test]
async fn a_generation_ends_for_each_of_its_reasons() {
    check(stop(3), &tokens("abcdef"), FinishReason::Length, "abc").await;
    let mut spoken = tokens("ab");
    spoken.push(end());
    check(stop(9), &spoken, FinishReason::StopToken(end()), "ab").await;
    let b = tokens("b")[0];
    check(StopConditions { token_ids: vec![b], ..stop(9) }, &tokens("abc"), FinishReason::StopToken(b), "a").await;
    let strings = vec!["cd".to_owned()];
    let found = FinishReason::StopString("cd".into());
    check(StopConditions { strings: strings.clone(), ..stop(9) }, &tokens("abcdef"), found.clone(), "ab").await;
    let keeps = StopConditions { strings, include_stop_string: true, ..stop(9) };
    check(keeps, &tokens("abcdef"), found, "abcd").await;
}

#[tokio::test]
async fn text_held_back_for_a_stop_string_comes_with_the_end() {
    let conditions = StopConditions { strings: vec!["cde".into()], ..stop(4) };
    check(conditions, &tokens("abcd"), FinishReason::Length, "abcd").await;
}

#[tokio::test]
async fn before_min_tokens_nothing_but_length_ends_it() {
    let mut spoken = vec![end(), end()];
    spoken.extend(tokens("ab"));
    spoken.push(end());
    let conditions = StopConditions { min_tokens: 2, strings: vec!["!".into()], ..stop(9) };
    // The end is not chosen for the first two, so that the next best token is: `!`.
    check(conditions, &spoken, FinishReason::StopToken(end()), "!!ab").await;
}

#[tokio::test]
async fn ignore_eos_goes_on_to_the_length() {
    let spoken = [tokens("a"), vec![end()], tokens("b")].concat();
    check(StopConditions { ignore_eos: true, ..stop(3) }, &spoken, FinishReason::Length, "ab").await;
}

#[tokio::test]
async fn characters_are_never_split() {
    check(stop(4), &tokens("aé…"), FinishReason::Length, "aé\u{FFFD}").await;
}

#[tokio::test]
async fn prompts_are_scored_once_though_rows_come_twice() {
    let mut stage = Stage::new("abcd", stop(0), |request| request.prompt_logprobs = Some(1));
    let prompt = tokens("abcd");
    let rows: Vec<_> = (0..4).map(|i| stage.row(&[*prompt.get(i + 1).unwrap_or(&0)])).collect();
    let task = |first_position, rows, samples| SampleTask {
        id: RequestId(1),
        rows,
        first_position,
        scores_prompt: true,
        samples,
    };
    let first = stage.advance(task(0, 2, false), &rows[..2].concat());
    assert_eq!((first.verdict, first.end), (Verdict::Scored, None));
    // Preempted here, and computed from the begin.
    let last = stage.advance(task(0, 4, true), &rows.concat());
    assert!(matches!(last.end, Some(Event::Finished { reason: FinishReason::Length, .. })));
    let Some(Event::Prompt { logprobs }) = stage.client.next().await else { panic!() };
    let ranks: Vec<_> = logprobs.iter().map(|position| position.as_ref().map(|p| (p.chosen.token, p.rank))).collect();
    assert_eq!(ranks, [None, Some((prompt[1], 1)), Some((prompt[2], 1)), Some((prompt[3], 1))]);
}

#[tokio::test]
async fn what_the_engine_chose_counts_like_a_choice_of_its_own() {
    let mut stage = Stage::new("hi", stop(3), |_| {});
    let task = SampleTask { id: RequestId(1), rows: 1, first_position: 0, scores_prompt: false, samples: true };
    let mut hear = |chosen| {
        let choice = stage.sequence.choose(&task, Computed::Chosen(chosen), &mut Chooser::default(), &stage.tokenizer);
        stage.sequence.deliver(choice, &stage.tokenizer)
    };
    let a = tokens("a")[0];
    assert_eq!(hear(Chosen::Token(a)).verdict, Verdict::Token(a));
    for unusable in [Chosen::Nothing, Chosen::NotFinite(7)] {
        assert!(matches!(hear(unusable).end, Some(Event::Failed(GenerationError::Engine(_)))));
    }
    let ended = hear(Chosen::Token(end())).end;
    assert!(matches!(ended, Some(Event::Finished { reason: FinishReason::StopToken(_), .. })), "{ended:?}");
}

#[tokio::test]
async fn logits_that_are_no_distribution_fail_the_request() {
    for logits in [vec![f32::NAN; tokenizer().vocab_size()], Vec::new()] {
        let mut stage = Stage::new("a", stop(5), |_| {});
        let task = SampleTask { id: RequestId(1), rows: 1, first_position: 0, scores_prompt: false, samples: true };
        assert!(matches!(stage.advance(task, &logits).end, Some(Event::Failed(GenerationError::Engine(_)))));
    }
}
