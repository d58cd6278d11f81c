//! One round: sends the workload to one server, in a closed or an open loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::client::Server;
use super::record::{Failure, Record};
use super::workload::{Arrivals, PlannedRequest, Workload};

/// The result of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The finished requests, in the order in which they ended.
    pub records: Vec<Record>,
    /// Maximum requests in flight.
    pub peak: usize,
    /// Requests in flight when Ctrl-C was pressed.
    pub unfinished: usize,
    /// Whether Ctrl-C ended the round.
    pub interrupted: bool,
}

/// Sends round number `round` of the workload and waits for all answers, or for `interrupt`.
///
/// In a closed loop, a client whose request was refused for overload waits for the time in `Retry-After` before its next
/// request; the refused request is not repeated. An open loop ignores `Retry-After`, so that it can overload a server.
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
            // No limit delays these, so the requests that are sent depend only on the seed.
            Arrivals::Poisson { max_concurrency: None, .. } => due,
            _ => due.max(start.elapsed()),
        };
        workload.duration.is_some_and(|limit| sent >= limit)
    };
    let mut planned = workload.requests_of(round).peekable();
    let (mut running, mut result) = (JoinSet::new(), Round::default());
    loop {
        let next_due = planned.peek().map(|request| request.due).filter(|&due| !is_late(due));
        if next_due.is_none() && running.is_empty() {
            return result;
        }
        let may_send = running.len() < workload.arrivals.limit();
        let wait = next_due.map_or(Duration::MAX, |due| due.saturating_sub(start.elapsed()));
        tokio::select! {
            biased;
            _ = &mut *interrupt => {
                result.unfinished = running.len();
                result.interrupted = true;
                return result;
            }
            Some(done) = running.join_next() => {
                // `measure` does not panic, and tasks are not cancelled here.
                if let Ok(record) = done {
                    bar.inc(1);
                    result.records.push(record);
                }
            }
            () = until_due(wait), if may_send && next_due.is_some() => {
                if let Some(request) = planned.next() {
                    running.spawn(send(server.clone(), workload.arrivals, request, start));
                    result.peak = result.peak.max(running.len());
                }
            }
        }
    }
}

/// Returns at once for a zero wait: `sleep` would wait for a tick of the timer.
async fn until_due(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

async fn send(server: Arc<Server>, arrivals: Arrivals, request: PlannedRequest, start: Instant) -> Record {
    let record = server.measure(&request, start).await;
    match arrivals {
        Arrivals::Closed { .. } => {
            tokio::time::sleep(record.failure.as_ref().map_or(Duration::ZERO, Failure::pause)).await;
            record
        }
        Arrivals::Poisson { .. } => Record { due: Some(request.due), ..record },
    }
}
