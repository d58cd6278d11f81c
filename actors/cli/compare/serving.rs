//! The rows of the server: starts a process, measures its first token, the load of several numbers of clients, and the
//! peak memory at the end.
//!
//! The load is that of `cuelight bench serve`: streaming chat completions in a closed loop, or text completions for a
//! model without a chat template.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Url;

use super::child::Running;
use super::contender::{Contender, FlashAttention, MODEL_NAME, ServerPlan};
use super::error::{JobError, ServingError};
use super::rows::Test;
use crate::cli::bench::serve::client::{CallOptions, Endpoint, Server};
use crate::cli::bench::serve::record::Failure;
use crate::cli::bench::serve::round;
use crate::cli::bench::serve::summary::Summary;
use crate::cli::bench::serve::workload::{Arrivals, Span, Workload};
use crate::cli::terminal::Terminal;

/// Tokens of a prompt including the chat template.
const PROMPT_TOKENS: usize = 118;

/// Tokens of an answer.
const OUTPUT_TOKENS: usize = 64;

/// Words of the first prompt, which is sent before the token counts are calibrated.
const FIRST_PROMPT_WORDS: usize = 32;

/// Tokens of the first answer. Only its first token is measured.
const FIRST_OUTPUT_TOKENS: usize = 4;

/// Maximum tokens of a sequence: prompt, answer, and a reserve for a long chat template.
const SLOT_TOKENS: usize = 512;

/// Requests per client: a second one starts while other clients still decode.
const REQUESTS_PER_CLIENT: usize = 2;

/// Minimum requests for a median.
const MIN_REQUESTS: usize = 4;

/// Time limit for the first answer.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// The measurements of one server process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingJob {
    tests: Vec<Test>,
    /// Slots of the server: the largest number of clients.
    slots: usize,
    /// Numbers of clients to measure; empty if only the first token is measured.
    clients: Vec<usize>,
    threads: usize,
    endpoint: Endpoint,
}

impl ServingJob {
    /// The job for these rows; `None` if no row needs a server.
    #[must_use]
    pub fn new(tests: &[Test], clients: &[usize], threads: usize, endpoint: Endpoint) -> Option<Self> {
        let needs_server = |test: &&Test| !matches!(test, Test::Prefill { .. } | Test::Decode { .. });
        let tests: Vec<Test> = tests.iter().filter(needs_server).copied().collect();
        let slots = clients.iter().copied().max().filter(|_| !tests.is_empty())?;
        // Peak memory is read after the whole load, even if the load's own rows are not selected.
        let needs_load = tests.iter().any(|test| *test != Test::ColdStart);
        let clients = if needs_load { clients.to_vec() } else { Vec::new() };
        Some(ServingJob { tests, slots, clients, threads, endpoint })
    }

    /// The rows that it measures.
    #[must_use]
    pub fn tests(&self) -> &[Test] {
        &self.tests
    }

    /// Starts the server, measures it, and stops it.
    ///
    /// # Errors
    /// [`JobError`] when the server fails. Samples recorded before are kept.
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
        let measured = self.load(url, options, &contender.with_setting(setting), round, terminal, &mut wanted).await;
        if measured.is_err() {
            // The exit of the process explains more than a failed request.
            running.wait_for_exit().await;
        }
        running.check().await?;
        if let Some(bytes) = running.id().and_then(peak_resident_bytes) {
            wanted(Test::PeakMemory, bytes as f64 / f64::from(1 << 20));
        }
        running.stop().await;
        Ok(measured?)
    }

    /// Measures each number of clients. If a request fails, that number has no figures, and the next one is measured.
    async fn load(
        &self,
        url: Url,
        options: CallOptions,
        name: &str,
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
            let bar = terminal.requests_bar(name, workload.requests.map(|count| count as u64));
            // Ctrl-C drops this future, so no interrupt is needed here.
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

/// The requests of some clients: the same for every server, and different in each round.
fn workload(clients: usize) -> Workload {
    Workload {
        seed: clients as u64,
        prompt_tokens: Span { min: PROMPT_TOKENS, max: PROMPT_TOKENS },
        output_tokens: Span { min: OUTPUT_TOKENS, max: OUTPUT_TOKENS },
        shared_prefix: 0.0,
        arrivals: Arrivals::Closed { concurrency: clients },
        requests: Some((clients * REQUESTS_PER_CLIENT).max(MIN_REQUESTS)),
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
        timeout: START_TIMEOUT,
    }
}

/// The time from the start of the process to its first token. The first request is repeated until the server accepts it.
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
    let request = short.warm_up(round);
    loop {
        let record = server.measure(&request, started).await;
        let failure = match (record.failure, record.chunks.first()) {
            (None, Some(&first)) => return Ok(first),
            (None, None) => return Err(ServingError::First(Failure::Empty).into()),
            (Some(failure), _) => failure,
        };
        running.check().await?;
        match failure {
            Failure::Unreachable(_) | Failure::Disconnected(_) | Failure::Refused { status: 503, .. } => {}
            failure => return Err(ServingError::First(failure).into()),
        }
        if started.elapsed() > START_TIMEOUT {
            return Err(ServingError::NotReady { timeout: START_TIMEOUT, failure }.into());
        }
        // An interval of 1 % of the elapsed time: it neither slows the start nor adds a visible error.
        tokio::time::sleep((started.elapsed() / 100).clamp(Duration::from_millis(2), Duration::from_millis(50))).await;
    }
}

/// A port that is free at the moment.
fn free_port() -> std::io::Result<u16> {
    TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.port())
}

/// The peak resident memory of a process in bytes; `None` on systems without /proc.
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_the_status_file() {
        assert_eq!(peak_in("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     12 kB\nVmRSS:\t 8 kB\n"), Some(12 << 10));
        assert_eq!(peak_in("Name:\tx\n"), None);
        assert_eq!(peak_in("VmHWM:\t many kB\n"), None);
        assert_eq!(peak_resident_bytes(std::process::id()).is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn requests_are_equal_for_contenders_and_differ_between_rounds() {
        let requests = |clients, round| workload(clients).requests_of(round).collect::<Vec<_>>();
        assert_eq!(requests(8, 0), requests(8, 0));
        assert_ne!(requests(8, 0), requests(8, 1));
        assert_eq!((requests(1, 0).len(), requests(8, 0).len()), (4, 16));
        assert!(requests(8, 0).iter().all(|request| (request.prompt.tokens, request.output_tokens) == (118, 64)));
    }

    #[test]
    fn only_rows_of_the_server_start_a_server() {
        let job = |tests: &[Test]| ServingJob::new(tests, &[4, 8], 2, Endpoint::Chat);
        assert_eq!(job(&[Test::Prefill { tokens: 512 }]), None);
        let start = job(&[Test::ColdStart]).unwrap();
        assert!(start.clients.is_empty() && start.slots == 8);
        assert_eq!(job(&[Test::PeakMemory]).unwrap().clients, [4, 8], "memory is measured after the same load");
    }
}
