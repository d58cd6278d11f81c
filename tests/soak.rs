//! A long time of everything at once on a real model: streams, answers in one piece, clients that hang up, bursts of too
//! many. Nothing may fail but by refusal, and memory must stay where it is.
//!
//! `CUELIGHT_TEST_MODELS=FOLDER CUELIGHT_SOAK_SECONDS=1800 cargo test --release --test soak -- --ignored --nocapture`
//!
//! Without `CUELIGHT_SOAK_SECONDS` it takes a minute. With `--features fault-injection` the engine is taken down every few
//! seconds as well, and still nothing may fail.

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

/// Clients of a burst; the server has room for a quarter of them.
const BURST: u64 = 128;
const BURST_EVERY: Duration = Duration::from_secs(10);

/// How often memory is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// Growth that allocators are allowed without a leak, in MiB.
const ALLOCATOR_MIB: f64 = 8.0;

/// The server, and what happened to its clients.
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
    fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// Another request each time.
    fn request(&self) -> Value {
        let seed = random(self.seed.fetch_add(1, Ordering::Relaxed));
        let prompt_tokens = 5 + seed % 200;
        chat(&text(prompt_tokens as usize, seed), 1 + (seed >> 32) as usize % 48)
    }

    /// Counts an answer, which must be one or a refusal, and stays away as long as it asks.
    async fn count(&self, answer: Answer) {
        answer.assert_answered_or_refused();
        let counter = if answer.status == 200 { &self.answered } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(answer.pause().min(Duration::from_secs(1))).await;
    }

    async fn stream(self: Arc<Self>) {
        while self.goes_on() {
            self.count(self.server.stream(&self.request()).await).await;
        }
    }

    async fn call(self: Arc<Self>) {
        while self.goes_on() {
            self.count(self.server.call(&self.request()).await).await;
        }
    }

    async fn quit(self: Arc<Self>) {
        while self.goes_on() {
            let patience = Duration::from_millis(random(self.seed.load(Ordering::Relaxed)) % 300);
            match tokio::time::timeout(patience, self.server.stream(&self.request())).await {
                Ok(answer) => self.count(answer).await,
                Err(_) => drop(self.hung_up.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    async fn burst(self: Arc<Self>) {
        while self.goes_on() {
            let client = |soak: Arc<Self>| async move { soak.count(soak.server.stream(&soak.request()).await).await };
            let burst: JoinSet<()> = (0..BURST).map(|_| client(self.clone())).collect();
            burst.join_all().await;
            tokio::time::sleep(BURST_EVERY).await;
        }
    }

    /// Takes the engine down now and then; nobody may notice but by the time it takes.
    #[cfg(feature = "fault-injection")]
    async fn strike(self: Arc<Self>) {
        for number in 0.. {
            // Seldom enough for the limit on restarts.
            tokio::time::sleep(Duration::from_secs(9)).await;
            if !self.goes_on() {
                return;
            }
            self.server.fault(["panic", "device_lost"][number % 2]).await;
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The slope of the line through points at equal distances that is nearest to them, for each distance.
fn slope(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let middle = (n - 1.0) / 2.0;
    let covariance: f64 = values.iter().enumerate().map(|(i, value)| (i as f64 - middle) * (value - mean)).sum();
    let variance: f64 = (0..values.len()).map(|i| (i as f64 - middle).powi(2)).sum();
    covariance / variance
}

#[test]
fn a_slope_is_that_of_the_nearest_line() {
    assert_eq!(slope(&[1.0, 3.0, 5.0]), 2.0);
    assert_eq!(slope(&[2.0, 1.0, 2.0]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real weights: set CUELIGHT_TEST_MODELS"]
async fn a_long_time_of_everything_at_once_leaves_no_trace() {
    let seconds = std::env::var("CUELIGHT_SOAK_SECONDS").map_or(60, |text| text.parse().unwrap());
    // Small, so that every block is in use soon and memory is settled, and so that sequences make room for others.
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
    (0..QUITTERS).for_each(|_| drop(clients.spawn(soak.clone().quit())));
    clients.spawn(soak.clone().burst());
    #[cfg(feature = "fault-injection")]
    clients.spawn(soak.clone().strike());

    let mut resident_mib = Vec::new();
    while soak.goes_on() {
        tokio::time::sleep(SAMPLE_EVERY).await;
        resident_mib.push(soak.server.resident_mib());
        // A client that panicked has something to say now, not in half an hour.
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
    // The first third is for what is allocated once.
    let settled = &resident_mib[resident_mib.len() / 3..];
    let growth = slope(settled) * settled.len() as f64;
    let a_minute = slope(settled) * 60.0 / SAMPLE_EVERY.as_secs_f64();
    println!(
        "{:.1} MiB resident at the end, {growth:+.2} MiB over the last two thirds, {a_minute:+.2} a minute",
        settled[settled.len() - 1]
    );
    assert!(growth <= ALLOCATOR_MIB, "memory grew by {growth:.1} MiB");
    assert!(count(&soak.answered) > 0 && count(&soak.refused) > 0, "there was load, and overload");
}
