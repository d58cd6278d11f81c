//! One round: the workload sent to one server, in a closed or in an open loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::client::Server;
use super::record::{Failure, Record};
use super::workload::{Arrivals, Ask, Workload};

/// What a round gave.
#[derive(Debug, Default)]
pub struct Round {
    /// The requests that ended, in the order of their ends.
    pub records: Vec<Record>,
    /// Most requests that were unanswered at a time.
    pub peak: usize,
    /// Requests that were on their way when Ctrl-C came.
    pub unfinished: usize,
    /// Whether Ctrl-C came.
    pub interrupted: bool,
}

/// Sends round number `round` of the workload and waits for every answer, or for `interrupt`.
///
/// A closed loop's client that is refused for want of room stays away as long as the answer says before it sends its
/// next request; the refused one is not sent again. An open loop has no such manners: that is how it overloads.
pub async fn run(
    server: &Arc<Server>,
    workload: &Workload,
    round: usize,
    bar: &ProgressBar,
    interrupt: &mut (impl Future + Unpin),
) -> Round {
    let start = Instant::now();
    let is_late = |due: Duration| {
        let sent = match workload.arrivals {
            // Nothing holds these back, so what is sent follows from the seed alone.
            Arrivals::Poisson { max_concurrency: None, .. } => due,
            _ => due.max(start.elapsed()),
        };
        workload.duration.is_some_and(|limit| sent >= limit)
    };
    let mut asks = workload.asks(round).peekable();
    let (mut running, mut result) = (JoinSet::new(), Round::default());
    loop {
        let next_due = asks.peek().map(|ask| ask.due).filter(|&due| !is_late(due));
        if next_due.is_none() && running.is_empty() {
            return result;
        }
        let has_room = running.len() < workload.arrivals.limit();
        let wait = next_due.map_or(Duration::MAX, |due| due.saturating_sub(start.elapsed()));
        tokio::select! {
            biased;
            _ = &mut *interrupt => {
                result.unfinished = running.len();
                result.interrupted = true;
                return result;
            }
            Some(done) = running.join_next() => {
                // A call neither panics nor is cancelled here.
                if let Ok(record) = done {
                    bar.inc(1);
                    result.records.push(record);
                }
            }
            () = until_due(wait), if has_room && next_due.is_some() => {
                if let Some(ask) = asks.next() {
                    running.spawn(call(server.clone(), workload.arrivals, ask, start));
                    result.peak = result.peak.max(running.len());
                }
            }
        }
    }
}

/// Sleeping costs a tick of the timer even when there is nothing to wait for.
async fn until_due(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

async fn call(server: Arc<Server>, arrivals: Arrivals, ask: Ask, start: Instant) -> Record {
    let record = server.measure(&ask, start).await;
    match arrivals {
        Arrivals::Closed { .. } => {
            tokio::time::sleep(record.failure.as_ref().map_or(Duration::ZERO, Failure::pause)).await;
            record
        }
        Arrivals::Poisson { .. } => Record { due: Some(ask.due), ..record },
    }
}
