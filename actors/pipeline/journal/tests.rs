//! Tests of the journal: who may continue a request, and how often.
#![allow(clippy::unwrap_used)]

use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::core::request::GenerationRequest;
use crate::pipeline::client::{ClientStream, channel};

fn journal() -> RequestJournal {
    let journal = RequestJournal::new(&RuntimeOptions { model_id: "journal".into(), ..RuntimeOptions::default() });
    journal.open();
    journal
}

fn record(id: u64) -> (Arc<RequestRecord>, ClientStream) {
    record_of(id, GenerationRequest { prompt: vec![1], ..GenerationRequest::default() })
}

fn record_of(id: u64, request: GenerationRequest) -> (Arc<RequestRecord>, ClientStream) {
    let (sink, stream) = channel(16);
    (Arc::new(RequestRecord::new(RequestId(id), request, sink)), stream)
}

/// A request that a scheduler has accepted.
fn accepted(journal: &RequestJournal, id: u64) -> (Arc<RequestRecord>, ClientStream) {
    accept(journal, record(id))
}

fn accept(
    journal: &RequestJournal,
    (record, stream): (Arc<RequestRecord>, ClientStream),
) -> (Arc<RequestRecord>, ClientStream) {
    journal.submit(&record).unwrap();
    let record = journal.undecided(record.id).unwrap();
    journal.decide(&record, Ok(()));
    (record, stream)
}

fn token(token: u32) -> Event {
    Event::Token { token, text: String::new(), logprobs: None }
}

fn continued(journal: &RequestJournal) -> Vec<(u64, Committed)> {
    let continued = journal.recover().into_iter().filter_map(|recovery| match recovery {
        Recovery::Continue(record, committed) => Some((record.id.0, committed)),
        Recovery::Submit(_) => None,
    });
    continued.collect()
}

#[tokio::test]
async fn a_sampler_that_was_replaced_neither_sends_nor_ends() {
    let journal = journal();
    let (record, mut stream) = accepted(&journal, 1);
    let first = record.take_over(9);
    record.commit_tokens(first, [token(5)], None);
    let second = record.take_over(9);
    record.commit_tokens(first, [token(6)], None);
    journal.end(record.id, Some(first), Event::Failed(GenerationError::StalledClient));
    record.commit_tokens(second, [token(7)], None);
    assert_eq!(record.committed().tokens, [5, 7]);
    journal.end(record.id, Some(second), Event::Failed(GenerationError::ShuttingDown));
    journal.end(record.id, None, Event::Failed(GenerationError::StalledClient));
    for expected in [token(5), token(7), Event::Failed(GenerationError::ShuttingDown)] {
        assert_eq!(stream.next().await, Some(expected));
    }
    assert!(continued(&journal).is_empty());
}

#[tokio::test]
async fn requests_without_a_decision_are_submitted_again_and_those_of_lost_clients_are_not() {
    let journal = journal();
    let (waits, _stream) = record(1);
    let _decision = journal.submit(&waits).unwrap();
    let (left, stream) = record(2);
    let _decision = journal.submit(&left).unwrap();
    drop(stream);
    // The scheduler died while it decided about this one.
    let (deciding, _stream) = record(3);
    let mut decision = journal.submit(&deciding).unwrap();
    journal.undecided(deciding.id).unwrap();
    let (cancelled, _stream) = accepted(&journal, 4);
    cancelled.cancel();
    let recovered = journal.recover();
    let submitted: Vec<_> = recovered.iter().map(|recovery| matches!(recovery, Recovery::Submit(_))).collect();
    assert_eq!(submitted, [true, true], "{recovered:?}");
    assert_eq!(decision.try_recv(), Err(TryRecvError::Empty), "the client waits");
    assert_eq!(journal.recover().len(), 2, "the others have ended");
    let deciding = journal.undecided(deciding.id).unwrap();
    journal.decide(&deciding, Ok(()));
    assert_eq!(decision.try_recv(), Ok(Ok(())));
    assert!(journal.undecided(deciding.id).is_none(), "it is decided once");
}

#[tokio::test]
async fn a_request_that_kills_every_scheduler_that_decides_about_it_is_refused() {
    let journal = journal();
    let (record, _stream) = record(1);
    let mut decision = journal.submit(&record).unwrap();
    for _ in 1..MAX_DEATHS {
        journal.undecided(record.id).unwrap();
        assert_eq!(journal.recover().len(), 1);
    }
    journal.undecided(record.id).unwrap();
    assert!(journal.recover().is_empty());
    assert_eq!(decision.try_recv(), Ok(Err(no_scheduler())));
    assert!(journal.undecided(record.id).is_none());
}

#[tokio::test]
async fn a_request_that_sees_too_many_deaths_without_a_token_fails() {
    let journal = journal();
    let (cause, mut stream) = accepted(&journal, 1);
    let (progresses, _stream) = accepted(&journal, 2);
    let (waits, _other) = accepted(&journal, 3);
    let owner = progresses.take_over(99);
    for deaths in 1..=MAX_DEATHS {
        journal.started(cause.id, 0);
        journal.started(progresses.id, 0);
        journal.actor_died();
        let of: Vec<_> = continued(&journal).into_iter().map(|(id, committed)| (id, committed.deaths)).collect();
        let expected = if deaths < MAX_DEATHS { vec![(1, deaths), (2, 1), (3, 0)] } else { vec![(2, 1), (3, 0)] };
        assert_eq!(of, expected);
        progresses.commit_tokens(owner, [token(7)], None);
    }
    assert!(matches!(stream.next().await, Some(Event::Failed(GenerationError::Engine(_)))));
    assert!(!waits.committed().is_suspect());
}

#[tokio::test]
async fn a_death_during_recovery_counts_only_for_the_request_that_was_recovered() {
    let journal = journal();
    let (_other, _stream) = accepted(&journal, 1);
    let (cause, _its) = accepted(&journal, 2);
    journal.started(RequestId(1), 0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        journal.recovering(cause.id, || panic!("injected"));
    }));
    assert!(panicked.is_err());
    journal.actor_died();
    let continued = continued(&journal);
    assert_eq!(continued.iter().map(|(id, committed)| (*id, committed.deaths)).collect::<Vec<_>>(), [(1, 0)]);
}

#[tokio::test]
async fn a_closed_journal_has_ended_all_requests_and_takes_no_more() {
    let journal = journal();
    let (_record, mut stream) = accepted(&journal, 1);
    let (waits, _stream) = record(2);
    let mut decision = journal.submit(&waits).unwrap();
    journal.close(&GenerationError::ShuttingDown);
    assert_eq!(stream.next().await, Some(Event::Failed(GenerationError::ShuttingDown)));
    assert!(decision.try_recv().is_err());
    assert!(journal.submit(&record(3).0).is_none());
}

#[tokio::test]
async fn the_whole_prompt_is_reported_before_the_first_token_in_either_order() {
    let request = GenerationRequest { prompt: vec![1; 9], reports_progress: true, ..GenerationRequest::default() };
    for scheduler_is_first in [true, false] {
        let journal = journal();
        let (record, mut stream) = accept(&journal, record_of(1, request.clone()));
        let owner = record.take_over(9);
        journal.started(record.id, 2);
        journal.prompt_computed(record.id, 6);
        // A prompt that was preempted is computed again.
        journal.prompt_computed(record.id, 4);
        if scheduler_is_first {
            journal.prompt_computed(record.id, 9);
        }
        record.commit_tokens(owner, [token(5)], None);
        journal.prompt_computed(record.id, 9);
        record.commit_tokens(owner, [token(7)], None);
        let mut reported = Vec::new();
        while let Some(Event::Progress(progress)) = stream.next().await {
            assert_eq!((progress.prompt_tokens, progress.cached_tokens), (9, 2));
            reported.push(progress.done_tokens);
        }
        assert_eq!(reported, [2, 6, 9]);
        assert_eq!(stream.next().await, Some(token(7)), "nothing is reported after the first token");
    }
}
