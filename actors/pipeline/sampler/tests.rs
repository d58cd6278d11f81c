//! Tests of one sequence at the sampler, with logits that determine the sampled tokens.
#![allow(clippy::unwrap_used)]

use cuelight_engine::constraint::{ConstraintCompiler, Grammar};
use cuelight_engine::engine::{SampledToken, TokenId};
use cuelight_engine::sample::TokenSampler;

use super::outcome::{Advance, Computed, SampleOutcome};
use super::sequence::SequenceSampler;
use super::*;
use crate::core::request::{FinishReason, GenerationRequest, Marker, ReasoningOptions, SamplingParams, StopConditions};
use crate::core::stop_strings::StopStrings;
use crate::pipeline::client::{ClientStream, channel};
use crate::pipeline::policy::Verdict;
use crate::pipeline::simulation::{tokenizer, tokenizer_of_words};

/// A sequence with its client.
struct Fixture {
    sequence: SequenceSampler,
    client: ClientStream,
    tokenizer: Arc<Tokenizer>,
}

impl Fixture {
    fn new(prompt: &str, stop: StopConditions, change: impl FnOnce(&mut GenerationRequest)) -> Self {
        Self::with_tokenizer(tokenizer(), prompt, stop, change)
    }

    fn with_tokenizer(
        tokenizer: Arc<Tokenizer>,
        prompt: &str,
        stop: StopConditions,
        change: impl FnOnce(&mut GenerationRequest),
    ) -> Self {
        let mut request = GenerationRequest {
            prompt: tokenizer.encode(prompt, false, false).unwrap(),
            sampling: SamplingParams { temperature: 0.0, ..Default::default() },
            stop,
            skip_special_tokens: true,
            ..GenerationRequest::default()
        };
        change(&mut request);
        let (sink, client) = channel(64);
        let record = Arc::new(RequestRecord::new(RequestId(1), request, sink));
        Fixture { sequence: SequenceSampler::new(record, 100, &tokenizer), client, tokenizer }
    }

    /// A row in which these tokens are the most likely, best first.
    fn row(&self, best: &[TokenId]) -> Vec<f32> {
        let mut row = vec![0.0; self.tokenizer.vocab_size()];
        for (index, &token) in best.iter().enumerate() {
            row[token as usize] = 10.0 - index as f32;
        }
        row
    }

    fn advance(&mut self, task: SampleTask, logits: &[f32]) -> Advance {
        let outcome =
            self.sequence.sample(&task, Computed::Logits(logits), &mut TokenSampler::default(), &self.tokenizer);
        self.sequence.deliver(outcome, &self.tokenizer)
    }

    /// The task of the token with this index in the answer.
    fn task(&self, index: usize) -> SampleTask {
        SampleTask {
            id: RequestId(1),
            rows: 1,
            first_position: self.sequence.record().request.prompt.len() - 1 + index,
            scores_prompt: false,
            hidden_rows: 0,
            samples: true,
            draft: None,
            canvas: None,
        }
    }

    /// Feeds tokens until the sequence ends. Returns the reason and the whole text.
    async fn generate(mut self, tokens: &[TokenId]) -> (FinishReason, String) {
        for (index, &token) in tokens.iter().enumerate() {
            let row = self.row(&[token, 33]);
            let task = self.task(index);
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

async fn check(stop: StopConditions, generated: &[TokenId], reason: FinishReason, text: &str) {
    let fixture = Fixture::new("hi", stop, |_| {});
    assert_eq!(fixture.generate(generated).await, (reason, text.to_owned()));
}

fn stops(strings: &[&str]) -> Arc<StopStrings> {
    Arc::new(StopStrings::new(strings.iter().map(ToString::to_string).collect()).unwrap())
}

#[tokio::test]
async fn a_generation_ends_for_every_finish_reason() {
    check(stop(3), &tokens("abcdef"), FinishReason::Length, "abc").await;
    let mut generated = tokens("ab");
    generated.push(end());
    check(stop(9), &generated, FinishReason::StopToken(end()), "ab").await;
    let b = tokens("b")[0];
    check(StopConditions { token_ids: vec![b], ..stop(9) }, &tokens("abc"), FinishReason::StopToken(b), "a").await;
    let strings = stops(&["cd"]);
    let found = FinishReason::StopString("cd".into());
    check(StopConditions { strings: strings.clone(), ..stop(9) }, &tokens("abcdef"), found.clone(), "ab").await;
    let keeps = StopConditions { strings, include_stop_string: true, ..stop(9) };
    check(keeps, &tokens("abcdef"), found, "abcd").await;
}

#[tokio::test]
async fn text_held_back_for_a_stop_string_is_sent_at_the_end() {
    let conditions = StopConditions { strings: stops(&["cde"]), ..stop(4) };
    check(conditions, &tokens("abcd"), FinishReason::Length, "abcd").await;
}

#[tokio::test]
async fn before_min_tokens_only_the_length_ends_a_generation() {
    let mut generated = vec![end(), end()];
    generated.extend(tokens("ab"));
    generated.push(end());
    let conditions = StopConditions { min_tokens: 2, strings: stops(&["!"]), ..stop(9) };
    // The end token is forbidden for the first two tokens, so the second best token `!` is sampled.
    check(conditions, &generated, FinishReason::StopToken(end()), "!!ab").await;
}

#[tokio::test]
async fn ignore_eos_continues_up_to_the_length() {
    let generated = [tokens("a"), vec![end()], tokens("b")].concat();
    check(StopConditions { ignore_eos: true, ..stop(3) }, &generated, FinishReason::Length, "ab").await;
}

#[tokio::test]
async fn characters_are_never_split() {
    check(stop(4), &tokens("aé…"), FinishReason::Length, "aé\u{FFFD}").await;
}

#[tokio::test]
async fn prompts_are_scored_once_even_when_rows_repeat() {
    let mut fixture = Fixture::new("abcd", stop(0), |request| request.prompt_logprobs = Some(1));
    let prompt = tokens("abcd");
    let rows: Vec<_> = (0..4).map(|i| fixture.row(&[*prompt.get(i + 1).unwrap_or(&0)])).collect();
    let task = |first_position, rows, samples| SampleTask {
        draft: None,
        canvas: None,
        id: RequestId(1),
        rows,
        first_position,
        scores_prompt: true,
        hidden_rows: 0,
        samples,
    };
    let first = fixture.advance(task(0, 2, false), &rows[..2].concat());
    assert_eq!((first.verdict, first.end), (Verdict::Unchanged, None));
    // The sequence is preempted here and recomputed from its first token.
    let last = fixture.advance(task(0, 4, true), &rows.concat());
    assert!(matches!(last.end, Some(Event::Finished { reason: FinishReason::Length, .. })));
    let Some(Event::Prompt { logprobs }) = fixture.client.next().await else { panic!() };
    let ranks: Vec<_> = logprobs.iter().map(|position| position.as_ref().map(|p| (p.sampled.token, p.rank))).collect();
    assert_eq!(ranks, [None, Some((prompt[1], 1)), Some((prompt[2], 1)), Some((prompt[3], 1))]);
}

#[tokio::test]
async fn a_token_sampled_by_the_engine_counts_like_any_other() {
    let mut fixture = Fixture::new("hi", stop(3), |_| {});
    let task = SampleTask {
        id: RequestId(1),
        rows: 1,
        first_position: 0,
        scores_prompt: false,
        hidden_rows: 0,
        samples: true,
        draft: None,
        canvas: None,
    };
    let mut deliver = |sampled| {
        let outcome = fixture.sequence.sample(
            &task,
            Computed::Sampled(sampled),
            &mut TokenSampler::default(),
            &fixture.tokenizer,
        );
        fixture.sequence.deliver(outcome, &fixture.tokenizer)
    };
    let a = tokens("a")[0];
    assert_eq!(deliver(SampledToken::Token(a)).verdict, Verdict::Tokens(vec![a]));
    for unusable in [SampledToken::Nothing, SampledToken::NotFinite(7)] {
        assert!(matches!(deliver(unusable).end, Some(Event::Failed(GenerationError::Engine(_)))));
    }
    let ended = deliver(SampledToken::Token(end())).end;
    assert!(matches!(ended, Some(Event::Finished { reason: FinishReason::StopToken(_), .. })), "{ended:?}");
}

#[tokio::test]
async fn unusable_logits_fail_the_request() {
    for logits in [vec![f32::NAN; tokenizer().vocab_size()], Vec::new()] {
        let mut fixture = Fixture::new("a", stop(5), |_| {});
        let task = SampleTask {
            id: RequestId(1),
            rows: 1,
            first_position: 0,
            scores_prompt: false,
            hidden_rows: 0,
            samples: true,
            draft: None,
            canvas: None,
        };
        assert!(matches!(fixture.advance(task, &logits).end, Some(Event::Failed(GenerationError::Engine(_)))));
    }
}

fn constrained(pattern: &str, change: impl FnOnce(&mut GenerationRequest)) -> Fixture {
    let compiler = ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size());
    let constraint = compiler.compile(&Grammar::Regex(pattern.into())).unwrap();
    Fixture::new("hi", stop(50), |request| {
        request.constraint = Some(constraint);
        change(request);
    })
}

/// A sequence that reasons, over a vocabulary with the token `>{`, which has the number 257.
fn reasoning(change: impl FnOnce(&mut GenerationRequest)) -> Fixture {
    let marker = |text: &str| Marker { text: text.into(), tokens: tokens(text) };
    let (start, end) = (marker("<t>"), marker("</t>"));
    let options = ReasoningOptions { is_open: true, start, end, distinct: 0, repeats: false, budget: None };
    Fixture::with_tokenizer(tokenizer_of_words(&[">{"]), "hi", stop(50), |request| {
        request.reasoning = Some(options);
        change(request);
    })
}

#[tokio::test]
async fn a_token_that_begins_the_answer_after_the_reasoning_is_not_missed() {
    let compiler = ConstraintCompiler::new(tokenizer_of_words(&[">{"]), 258);
    let constraint = compiler.compile(&Grammar::Regex("\\{a\\}".into())).unwrap();
    let mut fixture = reasoning(|request| request.constraint = Some(constraint));
    let [open, slash, letter, close] = tokens("</t>")[..] else { panic!("four tokens") };
    for (index, best) in [&[open][..], &[slash], &[letter], &[257, close]].into_iter().enumerate() {
        let (task, row) = (fixture.task(index), fixture.row(best));
        fixture.advance(task, &row);
    }
    let mut all = String::new();
    drop(fixture.sequence);
    while let Some(Event::Token { text, .. }) = fixture.client.next().await {
        all.push_str(&text);
    }
    assert!(all.ends_with("</t>{a}"), "{all}");

    let stopped = reasoning(|request| request.stop.strings = stops(&["{a"]));
    let generated = [&tokens("hm</t")[..], &[257], &tokens("ab")].concat();
    assert_eq!(stopped.generate(&generated).await, (FinishReason::StopString("{a".into()), "hm</t>".into()));
}

/// The verdict for the sampled token `text`, with the number of forced tokens after it.
fn sample_text(fixture: &mut Fixture, index: usize, text: &str) -> (Verdict, usize) {
    let (task, row) = (fixture.task(index), fixture.row(&tokens(text)));
    let advance = fixture.advance(task, &row);
    (advance.verdict, advance.forced)
}

#[tokio::test]
async fn tokens_that_a_constraint_forces_follow_without_logits() {
    let mut fixture = constrained("(a|x)bcde(f|g)h", |_| {});
    assert_eq!(sample_text(&mut fixture, 0, "a"), (Verdict::Tokens(tokens("abcde")), 4));
    // The step behind it was formed before that was known.
    let (task, row) = (fixture.task(1), fixture.row(&tokens("q")));
    let outcome =
        fixture.sequence.sample(&task, Computed::Logits(&row), &mut TokenSampler::default(), &fixture.tokenizer);
    assert!(matches!(outcome, SampleOutcome::Known(token) if [token] == tokens("b")[..]), "{outcome:?}");
    assert_eq!(fixture.sequence.deliver(outcome, &fixture.tokenizer).verdict, Verdict::Unchanged);
    // The end is forced as well.
    assert_eq!(sample_text(&mut fixture, 5, "g").0, Verdict::Ended);
    let mut text = String::new();
    drop(fixture.sequence);
    while let Some(Event::Token { text: more, .. }) = fixture.client.next().await {
        text.push_str(&more);
    }
    assert_eq!(text, "abcdegh");
}

#[tokio::test]
async fn forced_tokens_end_at_limits_and_stop_strings() {
    let ended = |change: fn(&mut GenerationRequest)| async move {
        constrained("(a|x)bcde(f|g)h", change).generate(&tokens("a")).await
    };
    assert_eq!(ended(|request| request.stop.max_tokens = 3).await, (FinishReason::Length, "abc".into()));
    let stopped = ended(|request| request.stop.strings = stops(&["cd"])).await;
    assert_eq!(stopped, (FinishReason::StopString("cd".into()), "ab".into()));
}

#[tokio::test]
async fn forced_tokens_have_log_probabilities_if_asked_for() {
    let mut fixture = constrained("(a|x)bcde(f|g)h", |request| request.logprobs = Some(1));
    for (index, token) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(sample_text(&mut fixture, index, "a"), (Verdict::Tokens(tokens(token)), 0));
    }
    drop(fixture.sequence);
    let Some(Event::Token { logprobs: Some(_), .. }) = fixture.client.next().await else { panic!("no probabilities") };
}

#[tokio::test]
async fn ignore_eos_continues_a_constrained_text_until_it_is_complete() {
    let generated = [tokens("a"), vec![end(); 3]].concat();
    let ended = |pattern: &'static str| {
        let fixture = constrained(pattern, |request| {
            request.stop = StopConditions { ignore_eos: true, ..stop(4) };
        });
        fixture.generate(&generated)
    };
    assert_eq!(ended("ab*").await, (FinishReason::Length, "abbb".into()));
    assert_eq!(ended("ab?").await, (FinishReason::StopToken(end()), "ab".into()));
}
