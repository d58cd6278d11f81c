//! `cuelight bench serve`: puts load on any server with the OpenAI API, and measures it from the client's side.
//!
//! # Layout, in the order of a measurement
//!
//! - [`workload`]: the requests and their times
//! - [`client`] with [`chunks`]: one server, and one request to it
//! - [`round`]: sends the workload to a server
//! - [`record`], [`summary`], [`report`]: the result of a request, of a round, of all rounds
//!
//! The client uses one thread, because it often runs on the machine that it measures.

pub mod chunks;
pub(in crate::cli) mod client;
pub(in crate::cli) mod record;
mod report;
pub(in crate::cli) mod round;
pub(in crate::cli) mod summary;
pub(in crate::cli) mod workload;

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use serde_json::{Value, json};

use self::client::{CallOptions, Endpoint, Server};
use self::report::{Format, Measured, MeasuredRound, Report};
use self::summary::Objective;
use self::workload::{Arrivals, Span, Workload};
use crate::cli::terminal::{Terminal, print};
use crate::cli::{CliError, Context, async_runtime, server_address};

/// Requests of a round without --requests and --duration.
const DEFAULT_REQUESTS: usize = 100;

/// Clients without --concurrency and --rate.
const DEFAULT_CONCURRENCY: usize = 8;

/// Measure a server under load: Cuelight, or any other server with the OpenAI API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight bench serve http://127.0.0.1:8080  8 clients, 100 requests
  cuelight bench serve http://127.0.0.1:8080 -c 16 --prompt-tokens 64-512
  cuelight bench serve http://127.0.0.1:8080 --rate 4 --goodput ttft:500
  cuelight bench serve http://127.0.0.1:8080 http://127.0.0.1:8081

Latencies count from sending a request: ttft is the time to the first text, itl each gap between two chunks of text, \
tpot an answer's mean time per token after the first, and e2e the time to the end. With --rate, delay is the time \
between the scheduled and the actual sending of a request.")]
pub struct Args {
    /// The servers' addresses, with or without http:// and /v1.
    #[arg(value_name = "URL", required = true, value_parser = address)]
    urls: Vec<Url>,
    /// Clients; each sends its next request after its last one was answered [default: 8].
    #[arg(short = 'c', long, value_name = "N", conflicts_with = "rate", help_heading = "Load")]
    concurrency: Option<NonZeroUsize>,
    /// Requests per second at random times (a Poisson process), independent of answers.
    #[arg(long, value_name = "R", value_parser = positive, help_heading = "Load")]
    rate: Option<f64>,
    /// With --rate: maximum requests in flight; later ones wait, and their delay is measured.
    #[arg(long, value_name = "N", requires = "rate", help_heading = "Load")]
    max_concurrency: Option<NonZeroUsize>,
    /// Requests of a round [default: 100, or as many as fit into --duration].
    #[arg(short = 'n', long, value_name = "N", help_heading = "Load")]
    requests: Option<NonZeroUsize>,
    /// Stop sending this long after a round's first request.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Load")]
    duration: Option<Duration>,
    /// Unmeasured requests before the first round, one after the other.
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Load")]
    warmup: usize,
    /// Rounds; with several URLs each round measures all servers.
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Load")]
    rounds: NonZeroUsize,
    /// Seed of lengths, texts and times. A server may have the prompts of a repeated seed in its cache [default: random].
    #[arg(long, value_name = "N", help_heading = "Load")]
    seed: Option<u64>,
    /// Tokens of a prompt including the chat template: a number, or a range to draw from, like 64-512.
    #[arg(long, value_name = "SPAN", default_value = "512", help_heading = "Requests")]
    prompt_tokens: Span,
    /// Tokens of an answer: a number, or a range to draw from.
    #[arg(long, value_name = "SPAN", default_value = "128", help_heading = "Requests")]
    output_tokens: Span,
    /// Let the model end its answers: leave `ignore_eos` and `min_tokens` out of requests.
    #[arg(long, help_heading = "Requests")]
    respect_eos: bool,
    /// Share of each prompt that all prompts have in common, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share, help_heading = "Requests")]
    shared_prefix: f64,
    /// Request answers without streaming; these have no ttft, itl and tpot.
    #[arg(long, help_heading = "Requests")]
    no_stream: bool,
    /// The API to call.
    #[arg(long, value_name = "API", value_enum, default_value = "chat", help_heading = "Requests")]
    endpoint: Endpoint,
    /// The model to request [default: the first one that the server lists].
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    model: Option<String>,
    /// The API key to send.
    #[arg(long, value_name = "KEY", help_heading = "Requests")]
    api_key: Option<String>,
    /// Sampling temperature.
    #[arg(long, visible_alias = "temp", value_name = "T", default_value = "0", value_parser = not_negative, help_heading = "Requests")]
    temperature: f64,
    /// Time limit of a request.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = "Requests")]
    timeout: Duration,
    /// Count requests within these limits in milliseconds: ttft, itl (95 % of a request's gaps), tpot, e2e.
    #[arg(long, value_name = "NAME:MS,…", value_delimiter = ',', help_heading = "Results")]
    goodput: Vec<Objective>,
    /// Output format.
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum, default_value = "text", help_heading = "Results")]
    output: Format,
    /// Also write the results to this file as JSON.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    output_file: Option<PathBuf>,
    /// Include every request in the JSON.
    #[arg(long, help_heading = "Results")]
    detail: bool,
}

fn address(text: &str) -> Result<Url, String> {
    server_address::parse(text).ok_or_else(|| "write the server's address, like http://127.0.0.1:8080".to_owned())
}

fn number(text: &str, is_right: impl Fn(f64) -> bool, right: &str) -> Result<f64, String> {
    text.parse().ok().filter(|&number: &f64| number.is_finite() && is_right(number)).ok_or_else(|| right.to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "write a number above 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "write a number from 0")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=1.0).contains(&number), "write a number from 0 to 1")
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = positive(text.strip_suffix('s').unwrap_or(text)).map_err(|_| "write seconds, like 60".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|_| "that is too long".to_owned())
}

impl Args {
    fn workload(&self) -> Workload {
        let arrivals = match self.rate {
            Some(per_second) => {
                Arrivals::Poisson { per_second, max_concurrency: self.max_concurrency.map(NonZeroUsize::get) }
            }
            None => Arrivals::Closed { concurrency: self.concurrency.map_or(DEFAULT_CONCURRENCY, NonZeroUsize::get) },
        };
        let requests = match (self.requests, self.duration) {
            (Some(requests), _) => Some(requests.get()),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_REQUESTS),
        };
        Workload {
            // Few digits, so that it is easy to type again.
            seed: self.seed.unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            shared_prefix: self.shared_prefix,
            arrivals,
            requests,
            duration: self.duration,
        }
    }

    fn call_options(&self) -> CallOptions {
        CallOptions {
            endpoint: self.endpoint,
            model: self.model.clone(),
            api_key: self.api_key.clone(),
            stream: !self.no_stream,
            ignore_eos: !self.respect_eos,
            temperature: self.temperature,
            timeout: self.timeout,
        }
    }

    /// The workload in one line.
    fn describe(&self, workload: &Workload) -> String {
        let load = match workload.arrivals {
            Arrivals::Closed { concurrency } => format!("concurrency {concurrency}"),
            Arrivals::Poisson { per_second, .. } => format!("{per_second} requests/s"),
        };
        let shared = match workload.shared_prefix {
            0.0 => String::new(),
            share => format!(" ({:.0} % shared)", share * 100.0),
        };
        let (prompt, output, seed) = (workload.prompt_tokens, workload.output_tokens, workload.seed);
        let streaming = if self.no_stream { ", without streaming" } else { "" };
        format!("{load}, prompts of {prompt} tokens{shared}, answers of {output}{streaming}, seed {seed}")
    }

    fn settings(&self, workload: &Workload) -> Value {
        let concurrency = match workload.arrivals {
            Arrivals::Closed { concurrency } => Some(concurrency),
            Arrivals::Poisson { max_concurrency, .. } => max_concurrency,
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "seed": workload.seed,
            "rate": self.rate,
            "concurrency": concurrency,
            "requests": workload.requests,
            "duration_seconds": self.duration.map(|duration| duration.as_secs_f64()),
            "prompt_tokens": [workload.prompt_tokens.min, workload.prompt_tokens.max],
            "output_tokens": [workload.output_tokens.min, workload.output_tokens.max],
            "ignore_eos": !self.respect_eos,
            "shared_prefix": workload.shared_prefix,
            "stream": !self.no_stream,
            "endpoint": match self.endpoint {
                Endpoint::Chat => "chat",
                Endpoint::Completions => "completions",
            },
            "temperature": self.temperature,
            "timeout_seconds": self.timeout.as_secs_f64(),
            "warmup": self.warmup,
        })
    }
}

/// Measures the servers and prints the results; after Ctrl-C the results so far.
///
/// # Errors
/// [`CliError`] when a server cannot be measured or answers no request.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    // Create the file first: a wrong path fails before the measurement, not after it.
    let file = args.output_file.as_ref().map(|path| {
        let what = format!("write {}", path.display());
        File::create(path).map(|file| (file, what.clone())).map_err(CliError::io(what))
    });
    let file = file.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::io("start the threads"))?;
    let (report, interrupted) = runtime.block_on(measure(args, context.terminal))?;
    if let Some((mut file, what)) = file {
        file.write_all(report.to_json().as_bytes()).map_err(CliError::io(what))?;
    }
    print(&report.print(args.output))?;
    match (interrupted, report.succeeded()) {
        (true, _) => Err(CliError::Interrupted),
        (false, 0) => Err(CliError::Failed("no request was answered".to_owned())),
        (false, _) => Ok(()),
    }
}

/// All rounds on all servers, and whether Ctrl-C ended them.
async fn measure(args: &Args, terminal: Terminal) -> Result<(Report, bool), CliError> {
    let workload = args.workload();
    let mut interrupt = pin!(async_runtime::interrupt());
    let servers = tokio::select! {
        biased;
        _ = &mut interrupt => return Err(CliError::Interrupted),
        servers = connect(args, &workload, terminal) => servers?,
    };
    let mut report = Report {
        started: jiff::Timestamp::now().to_string(),
        workload: args.describe(&workload),
        settings: args.settings(&workload),
        servers: servers.iter().map(measured).collect(),
    };
    for round in 0..args.rounds.get() {
        for offset in 0..servers.len() {
            // Each round begins with another server, so that none always runs after the same one.
            let index = (round + offset) % servers.len();
            let bar = terminal.requests_bar(servers[index].url(), workload.requests.map(|count| count as u64));
            let result = round::run(&servers[index], &workload, round, &bar, &mut interrupt).await;
            bar.finish_and_clear();
            if !result.records.is_empty() {
                let measured = MeasuredRound::of(&result, &args.goodput, args.detail);
                report.servers[index].rounds.push(measured);
            }
            if result.interrupted {
                return Ok((report, true));
            }
        }
    }
    Ok((report, false))
}

fn measured(server: &Arc<Server>) -> Measured {
    Measured { url: server.url().to_owned(), model: server.model.clone(), rounds: Vec::new() }
}

/// Connects to each server, measures how it counts tokens, and warms it up.
async fn connect(args: &Args, workload: &Workload, terminal: Terminal) -> Result<Vec<Arc<Server>>, CliError> {
    let mut servers = Vec::new();
    for url in &args.urls {
        let server = Server::connect(url.clone(), args.call_options()).await.map_err(CliError::other)?;
        let overhead = server.scale.overhead.round();
        if !server.counts_tokens {
            terminal.notice(&format!("{url} does not report token counts: each word of a prompt counts as one token"));
        } else if overhead + 1.0 > workload.prompt_tokens.min as f64 {
            terminal.notice(&format!(
                "{url} adds {overhead} tokens to each prompt: the shortest prompts will be longer than requested"
            ));
        }
        for index in 0..args.warmup {
            server.warm_up(&workload.warm_up(index)).await.map_err(CliError::other)?;
        }
        servers.push(Arc::new(server));
    }
    Ok(servers)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(share("0.5").is_ok() && share("1.1").is_err() && share("-0.1").is_err() && share("NaN").is_err());
        assert!(positive("0.5").is_ok() && positive("0").is_err() && positive("inf").is_err());
        assert_eq!(seconds("90s").unwrap(), Duration::from_secs(90));
        assert!(seconds("0").is_err() && seconds("1e300").is_err() && seconds("soon").is_err());
    }
}
