//! A soak test with a real model: streams, complete responses, clients that disconnect, and bursts beyond the limit. No
//! request may fail except by refusal, and memory must not grow.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER CUELIGHT_SOAK_SECONDS=1800 cargo test --test soak -- --ignored --nocapture`
//!
//! Without `CUELIGHT_SOAK_SECONDS` it takes a minute. In a debug build the engine fails every few seconds as well, and still
//! no request may fail.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;

#[path = "support/server_process.rs"]
mod server_process;

use server_process::{Answer, ServerProcess, chat, random, text};

const STREAMERS: u64 = 4;
const CALLERS: u64 = 2;
const QUITTERS: u64 = 2;

/// Clients of a burst. The server accepts a quarter of them.
const BURST: u64 = 128;
const BURST_EVERY: Duration = Duration::from_secs(10);

/// Interval between two memory measurements.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// Allowed growth that is not a leak, in MiB. Each restart of an engine leaves freed memory in other places of the heap,
/// until all places have been used.
const ALLOWED_GROWTH_MIB: f64 = if cfg!(debug_assertions) { 48.0 } else { 8.0 };

/// The server, and counts of what its clients got.
struct Soak {
    server: ServerProcess,
    end: Instant,
    answered: AtomicU64,
    refused: AtomicU64,
    hung_up: AtomicU64,
    faults: AtomicU64,
    seed: AtomicU64,
}

impl Soak {
    fn is_running(&self) -> bool {
        Instant::now() < self.end
    }

    /// A new request on each call.
    fn request(&self) -> Value {
        let seed = random(self.seed.fetch_add(1, Ordering::Relaxed));
        let prompt_tokens = 5 + seed % 200;
        chat(&text(prompt_tokens as usize, seed), 1 + (seed >> 32) as usize % 48)
    }

    /// Counts a response, which must be a success or a refusal, and waits for its `retry-after`.
    async fn count(&self, answer: Answer) {
        answer.assert_answered_or_refused();
        let counter = if answer.status == 200 { &self.answered } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(answer.pause().min(Duration::from_secs(1))).await;
    }

    async fn stream(self: Arc<Self>) {
        while self.is_running() {
            self.count(self.server.stream(&self.request()).await).await;
        }
    }

    async fn call(self: Arc<Self>) {
        while self.is_running() {
            self.count(self.server.call(&self.request()).await).await;
        }
    }

    async fn disconnect(self: Arc<Self>) {
        while self.is_running() {
            let patience = Duration::from_millis(random(self.seed.load(Ordering::Relaxed)) % 300);
            match tokio::time::timeout(patience, self.server.stream(&self.request())).await {
                Ok(answer) => self.count(answer).await,
                Err(_) => drop(self.hung_up.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    async fn burst(self: Arc<Self>) {
        while self.is_running() {
            let client = |soak: Arc<Self>| async move { soak.count(soak.server.stream(&soak.request()).await).await };
            let burst: JoinSet<()> = (0..BURST).map(|_| client(self.clone())).collect();
            burst.join_all().await;
            tokio::time::sleep(BURST_EVERY).await;
        }
    }

    /// Triggers an engine fault from time to time. Clients may only notice the delay.
    #[cfg(debug_assertions)]
    async fn inject_faults(self: Arc<Self>) {
        for number in 0.. {
            // Rare enough for the limit on restarts.
            tokio::time::sleep(Duration::from_secs(9)).await;
            if !self.is_running() {
                return;
            }
            self.server.fault(["panic", "device_lost"][number % 2]).await;
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The growth of the highest value from the second third of the samples to the last third. The first third contains
/// one-time allocations. The highest values, because an engine that restarts uses little memory for a moment.
fn growth(samples: &[f64]) -> f64 {
    let (start, end) = (samples.len() / 3, samples.len() * 2 / 3);
    let highest = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    highest(&samples[end..]) - highest(&samples[start..end])
}

#[test]
fn growth_compares_the_last_two_thirds() {
    assert_eq!(growth(&[1.0, 1.0, 5.0, 2.0, 6.0, 0.0]), 1.0);
    assert_eq!(growth(&[9.0, 9.0, 5.0, 2.0, 4.0, 3.0]), -1.0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_long_mixed_load_causes_no_errors_and_no_memory_growth() {
    let seconds = std::env::var("CUELIGHT_SOAK_SECONDS").map_or(60, |text| text.parse().unwrap());
    // Few blocks, so that all are in use soon, memory is stable, and sequences are preempted.
    let flags = "--max-seqs 8 --max-queued-requests 32 --ctx-size 1024 --kv-memory 48MiB";
    let server = ServerProcess::start(&flags.split(' ').collect::<Vec<_>>()).await;
    let counter = || AtomicU64::new(0);
    let soak = Arc::new(Soak {
        server,
        end: Instant::now() + Duration::from_secs(seconds),
        answered: counter(),
        refused: counter(),
        hung_up: counter(),
        faults: counter(),
        seed: counter(),
    });

    let mut clients = JoinSet::new();
    (0..STREAMERS).for_each(|_| drop(clients.spawn(soak.clone().stream())));
    (0..CALLERS).for_each(|_| drop(clients.spawn(soak.clone().call())));
    (0..QUITTERS).for_each(|_| drop(clients.spawn(soak.clone().disconnect())));
    clients.spawn(soak.clone().burst());
    #[cfg(debug_assertions)]
    clients.spawn(soak.clone().inject_faults());

    let mut resident_mib = Vec::new();
    while soak.is_running() {
        tokio::time::sleep(SAMPLE_EVERY).await;
        resident_mib.push(soak.server.resident_mib());
        // Reports a client that panicked now instead of at the end.
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
    }
    clients.join_all().await;
    soak.server.assert_empties(Duration::from_secs(10)).await;

    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{seconds} s: {} answered, {} refused, {} hung up, {} made to fail",
        count(&soak.answered),
        count(&soak.refused),
        count(&soak.hung_up),
        count(&soak.faults)
    );
    let growth = growth(&resident_mib);
    println!("{:.1} MiB resident at the end, {growth:+.2} MiB in the last third", resident_mib[resident_mib.len() - 1]);
    assert!(growth <= ALLOWED_GROWTH_MIB, "memory grew by {growth:.1} MiB");
    assert!(count(&soak.answered) > 0 && count(&soak.refused) > 0, "there must be load and overload");
}
