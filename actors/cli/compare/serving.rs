//! Rows of the server: a fresh process, its first token, clients of several numbers, and its peak memory at the end.
//!
//! The load is that of `cuelight bench serve`: streaming chat completions in a closed loop, or text completions for a
//! model without a chat template.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Url;

use super::JobError;
use super::child::Running;
use super::contender::{Contender, FlashAttention, MODEL_NAME, ServerPlan};
use super::rows::Test;
use crate::cli::bench::serve::client::{CallOptions, Endpoint, Server, ServerError};
use crate::cli::bench::serve::record::Failure;
use crate::cli::bench::serve::round;
use crate::cli::bench::serve::summary::Summary;
use crate::cli::bench::serve::workload::{Arrivals, Span, Workload};
use crate::cli::terminal::Terminal;

/// Length of the prompts with the chat template.
const PROMPT_TOKENS: usize = 118;

/// Length of the answers.
const OUTPUT_TOKENS: usize = 64;

/// Words of the first prompt, which is sent before it is known how many tokens a word is.
const FIRST_PROMPT_WORDS: usize = 32;

/// Length of the first answer, of which only the first token counts.
const FIRST_OUTPUT_TOKENS: usize = 4;

/// Longest sequence that a slot must hold: prompt, answer, and room for a template that is longer than usual.
const SLOT_TOKENS: usize = 512;

/// Requests for each client, so that its slot is taken again while others still decode.
const REQUESTS_PER_CLIENT: usize = 2;

/// Fewer requests would not make a median.
const LEAST_REQUESTS: usize = 4;

/// A server that has not answered by then never will.
const START_WITHIN: Duration = Duration::from_secs(600);

/// What one server process is measured for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingJob {
    tests: Vec<Test>,
    /// Slots of the server, as many as the most clients.
    slots: usize,
    /// Numbers of clients that ask in turn; none if all that counts is the first token.
    clients: Vec<usize>,
    threads: usize,
    endpoint: Endpoint,
}

/// Why a server gave no figures, or not all.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// No port to listen on.
    #[error("no free port on 127.0.0.1")]
    NoPort(#[source] std::io::Error),
    /// It did not become ready.
    #[error("the server answered no request within {} s: {failure}", START_WITHIN.as_secs())]
    NotReady {
        /// What came of the last one.
        failure: Failure,
    },
    /// Its first answer was none.
    #[error("the server's first answer failed: {0}")]
    First(Failure),
    /// It cannot be called.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Some requests were not answered.
    #[error("{failed} of {requests} requests of {clients} clients failed: {example}")]
    Failed {
        /// Clients at the time.
        clients: usize,
        /// How many failed.
        failed: usize,
        /// Of how many.
        requests: usize,
        /// What one of them said.
        example: String,
    },
}

impl ServingJob {
    /// The job for these rows; `None` if no row is about a server.
    #[must_use]
    pub fn new(tests: &[Test], clients: &[usize], threads: usize, endpoint: Endpoint) -> Option<Self> {
        let is_about_server = |test: &&Test| !matches!(test, Test::Prefill { .. } | Test::Decode { .. });
        let tests: Vec<Test> = tests.iter().filter(is_about_server).copied().collect();
        let slots = clients.iter().copied().max().filter(|_| !tests.is_empty())?;
        // Memory is weighed after the whole load, whether its rows are wanted or not.
        let is_asked = tests.iter().any(|test| *test != Test::ColdStart);
        let clients = if is_asked { clients.to_vec() } else { Vec::new() };
        Some(ServingJob { tests, slots, clients, threads, endpoint })
    }

    /// Starts the server, asks it all, and stops it.
    ///
    /// # Errors
    /// [`JobError`] when the server fails; what was recorded before holds.
    pub async fn run(
        &self,
        contender: &Contender,
        setting: Option<FlashAttention>,
        model: &Path,
        round: usize,
        terminal: Terminal,
        mut record: impl FnMut(Test, f64),
    ) -> Result<(), JobError> {
        let port = free_port().map_err(ServingError::NoPort)?;
        let plan = ServerPlan { port, slots: self.slots, slot_tokens: SLOT_TOKENS, threads: self.threads };
        let Some(command) = contender.server(model, &plan, setting) else { return Ok(()) };
        let url: Url = format!("http://127.0.0.1:{port}").parse().expect("an address and a number are a URL");
        let options = call_options(self.endpoint, contender.api_key());
        let started = Instant::now();
        let mut running = Running::start(command)?;
        let first = first_token(&mut running, url.clone(), options.clone(), round, started).await?;
        let mut wanted = |test: Test, value: f64| {
            if self.tests.contains(&test) {
                record(test, value);
            }
        };
        wanted(Test::ColdStart, milliseconds(first));
        let asked = self.ask(url, options, &contender.with_setting(setting), round, terminal, &mut wanted).await;
        if asked.is_err() {
            // Why it ended says more than that it no longer answers.
            running.settle().await;
        }
        running.check().await?;
        if let Some(bytes) = running.id().and_then(peak_resident_bytes) {
            wanted(Test::PeakMemory, bytes as f64 / f64::from(1 << 20));
        }
        running.stop().await;
        Ok(asked?)
    }

    /// Every number of clients in turn. One of which a request fails has no figures, and the others still come.
    async fn ask(
        &self,
        url: Url,
        options: CallOptions,
        who: &str,
        round: usize,
        terminal: Terminal,
        record: &mut impl FnMut(Test, f64),
    ) -> Result<(), ServingError> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let server = Arc::new(Server::connect(url, options).await?);
        server.warm_up(&workload(1).warm_up(round)).await?;
        let mut outcome = Ok(());
        for &clients in &self.clients {
            let workload = workload(clients);
            let bar = terminal.requests_bar(who, workload.requests.map(|count| count as u64));
            // Whoever is interrupted drops all of this.
            let result = round::run(&server, &workload, round, &bar, &mut std::future::pending::<()>()).await;
            bar.finish_and_clear();
            let summary = Summary::of(&result, &[]);
            if let Some(failures) = summary.failures.first() {
                let (failed, requests) = (summary.failed, summary.failed + summary.succeeded);
                let example = failures.example.clone();
                outcome = Err(ServingError::Failed { clients, failed, requests, example });
                continue;
            }
            record(Test::Throughput { clients }, summary.output_tokens_per_second);
            if let Some(ttft) = summary.ttft_ms {
                record(Test::FirstToken { clients }, ttft.p50);
            }
        }
        outcome
    }
}

/// The requests of so many clients; every server is sent the same, and each round others.
fn workload(clients: usize) -> Workload {
    Workload {
        seed: clients as u64,
        prompt_tokens: Span { min: PROMPT_TOKENS, max: PROMPT_TOKENS },
        output_tokens: Span { min: OUTPUT_TOKENS, max: OUTPUT_TOKENS },
        shared_prefix: 0.0,
        arrivals: Arrivals::Closed { concurrency: clients },
        requests: Some((clients * REQUESTS_PER_CLIENT).max(LEAST_REQUESTS)),
        duration: None,
    }
}

fn call_options(endpoint: Endpoint, api_key: Option<String>) -> CallOptions {
    CallOptions {
        endpoint,
        model: Some(MODEL_NAME.to_owned()),
        api_key,
        stream: true,
        ignore_eos: true,
        temperature: 0.0,
        timeout: START_WITHIN,
    }
}

/// From the start of the process to the first token of a first request, which is sent until it is taken.
async fn first_token(
    running: &mut Running,
    url: Url,
    options: CallOptions,
    round: usize,
    started: Instant,
) -> Result<Duration, JobError> {
    let server = Server::uncalibrated(url, options).map_err(ServingError::Server)?;
    let short = Workload {
        prompt_tokens: Span { min: FIRST_PROMPT_WORDS, max: FIRST_PROMPT_WORDS },
        output_tokens: Span { min: FIRST_OUTPUT_TOKENS, max: FIRST_OUTPUT_TOKENS },
        ..workload(1)
    };
    let ask = short.warm_up(round);
    loop {
        let record = server.measure(&ask, started).await;
        let failure = match (record.failure, record.chunks.first()) {
            (None, Some(&first)) => return Ok(first),
            (None, None) => return Err(ServingError::First(Failure::Empty).into()),
            (Some(failure), _) => failure,
        };
        running.check().await?;
        match failure {
            Failure::Unreachable(_) | Failure::BrokeOff(_) | Failure::Refused { status: 503, .. } => {}
            failure => return Err(ServingError::First(failure).into()),
        }
        if started.elapsed() > START_WITHIN {
            return Err(ServingError::NotReady { failure }.into());
        }
        // Rarely enough not to slow its start, and often enough that a hundredth of it is not seen.
        tokio::time::sleep((started.elapsed() / 100).clamp(Duration::from_millis(2), Duration::from_millis(50))).await;
    }
}

/// A port that nobody listens on just now.
fn free_port() -> std::io::Result<u16> {
    TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.port())
}

/// The most memory that a process ever had resident; `None` where the system does not tell as Linux does.
fn peak_resident_bytes(pid: u32) -> Option<u64> {
    peak_in(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_the_systems_lines() {
        assert_eq!(peak_in("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     12 kB\nVmRSS:\t 8 kB\n"), Some(12 << 10));
        assert_eq!(peak_in("Name:\tx\n"), None);
        assert_eq!(peak_in("VmHWM:\t many kB\n"), None);
        assert_eq!(peak_resident_bytes(std::process::id()).is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn every_contender_is_sent_the_same_and_each_round_others() {
        let asks = |clients, round| workload(clients).asks(round).collect::<Vec<_>>();
        assert_eq!(asks(8, 0), asks(8, 0));
        assert_ne!(asks(8, 0), asks(8, 1));
        assert_eq!((asks(1, 0).len(), asks(8, 0).len()), (4, 16));
        assert!(asks(8, 0).iter().all(|ask| (ask.prompt.tokens, ask.output_tokens) == (118, 64)));
    }

    #[test]
    fn a_server_is_started_for_what_is_asked_of_servers_only() {
        let job = |tests: &[Test]| ServingJob::new(tests, &[4, 8], 2, Endpoint::Chat);
        assert_eq!(job(&[Test::Prefill { tokens: 512 }]), None);
        let start = job(&[Test::ColdStart]).unwrap();
        assert!(start.clients.is_empty() && start.slots == 8);
        assert_eq!(job(&[Test::PeakMemory]).unwrap().clients, [4, 8], "it is weighed under the same load");
    }
}
