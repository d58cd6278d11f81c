//! `cuelight compare`: measures this program and a peer on this machine, and prints the ratios.
//!
//! A machine's speed changes from minute to minute, so the runs are interleaved: in each round every contender runs once
//! as a new process. The results are medians over the rounds.
//!
//! # Layout, in the order of a comparison
//!
//! - [`rows`]: the rows of the table, and their samples
//! - [`peer`]: finds peers and their names
//! - [`build_flags`]: the flags of a peer's build
//! - [`contender`]: the command lines of this program and of a peer
//! - [`schedule`]: the order of the runs, and the time left
//! - [`child`]: child processes and the end of their standard error
//! - [`engine`], [`serving`]: the two kinds of jobs in a round
//! - [`report`]: medians and ratios as Markdown or JSON

mod build_flags;
mod child;
mod contender;
mod engine;
mod error;
mod peer;
mod report;
mod rows;
mod schedule;
mod serving;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Instant;

use cuelight_engine::checkpoint;
use cuelight_engine::load::ActivationBits;

use self::contender::{Contender, FlashAttention, OwnProgram};
use self::engine::EngineJob;
use self::error::JobError;
use self::peer::Peer;
use self::report::{Comparison, Conditions};
use self::rows::{Kind, Test};
use self::schedule::{Run, Schedule};
use self::serving::ServingJob;
use super::bench::serve::client::Endpoint;
use super::terminal::{TableFormat, Terminal, number, print};
use super::{CliError, Context, async_runtime};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};
use crate::core::error_chain::error_chain;

/// Compare this program with llama-bench and llama-server on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight compare demo  with the llama-bench and llama-server on PATH
  cuelight compare ./model.gguf --peer ~/llama.cpp/build/bin --rounds 7
  cuelight compare ./model.gguf --peer llama.cpp --peer ik_llama.cpp
  cuelight compare ./model.gguf --only prefill,decode,depth
  cuelight compare ./model.gguf --only serve --clients 1,16 -o json

In each round every contender runs once as a new process; every second round runs in reverse order. A cell shows the \
median over the rounds, with minimum and maximum. A ratio is cuelight's median over the peer's. A peer runs with each \
--flash-attn setting, and the better one counts in each row; one that is clearly slower does not run again. A build of \
ik_llama.cpp repacks the weights (-rtr).")]
pub struct Args {
    /// The model: a GGUF file that both programs can read.
    #[arg(value_name = "MODEL")]
    model: String,
    /// A directory with llama-bench and llama-server, or one of these files; may be repeated [default: PATH].
    #[arg(long = "peer", value_name = "PATH")]
    peers: Vec<PathBuf>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Rows to measure.
    #[arg(long, value_name = "ROWS,…", value_enum, value_delimiter = ',', default_values_t = Kind::ALL)]
    only: Vec<Kind>,
    /// Threads of each contender; default: as configured.
    #[arg(short = 't', long = "threads", id = "threads_each", value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Bits of activations in this program's integer kernels: 15 or 8; default: as configured.
    #[arg(long = "activation-bits", id = "bits_of_activations", value_name = "BITS")]
    activation_bits: Option<ActivationBits>,
    /// Numbers of clients for the serving rows.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,8,16,32")]
    clients: Vec<NonZeroUsize>,
    /// The peer's flash attention settings; the better one counts.
    #[arg(long, value_name = "on,off", value_enum, value_delimiter = ',', default_value = "off,on")]
    flash_attn: Vec<FlashAttention>,
    /// Output format.
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum, default_value = "md")]
    output: TableFormat,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }

    /// Numbers of clients, sorted and without duplicates.
    fn clients(&self) -> Vec<usize> {
        let mut clients: Vec<usize> = self.clients.iter().map(|count| count.get()).collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// The rows, in the order of the table.
    fn tests(&self) -> Vec<Test> {
        let clients = self.clients();
        let wanted = |kind: &Kind| self.only.contains(kind);
        Kind::ALL.iter().filter(|kind| wanted(kind)).flat_map(|kind| kind.tests(&clients)).collect()
    }
}

/// A job of a round: one process of each contender.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Job {
    Engine(EngineJob),
    Serving(ServingJob),
}

impl Job {
    fn all(tests: &[Test], clients: &[usize], threads: usize, endpoint: Endpoint) -> Vec<Job> {
        let engine = EngineJob::all(tests, threads).into_iter().map(Job::Engine);
        engine.chain(ServingJob::new(tests, clients, threads, endpoint).map(Job::Serving)).collect()
    }

    /// The name in notices and errors.
    fn name(&self) -> String {
        match self {
            Job::Engine(job) => job.name(),
            Job::Serving(_) => "serving".to_owned(),
        }
    }

    /// The rows that it measures.
    fn tests(&self) -> &[Test] {
        match self {
            Job::Engine(job) => job.tests(),
            Job::Serving(job) => job.tests(),
        }
    }

    fn can_be_run_by(&self, contender: &Contender) -> bool {
        match self {
            Job::Engine(_) => contender.has_bench(),
            Job::Serving(_) => contender.has_server(),
        }
    }

    /// Runs the job once. Samples recorded before an error are kept.
    async fn run(
        &self,
        contender: &Contender,
        setting: Option<FlashAttention>,
        model: &Path,
        round: usize,
        terminal: Terminal,
        record: impl FnMut(Test, f64),
    ) -> Result<(), JobError> {
        match self {
            Job::Engine(job) => job.run(contender, setting, model, record).await,
            Job::Serving(job) => job.run(contender, setting, model, round, terminal, record).await,
        }
    }
}

/// Measures and prints the results; after Ctrl-C the results so far.
///
/// # Errors
/// [`CliError`] when there is no peer or no model, or a measurement failed.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let tests = args.tests();
    let threads = args.threads.map_or_else(|| context.config.thread_count(), NonZeroUsize::get);
    // Look for peers before downloading a model.
    let peers = peer::find(&args.peers, &context.search_path).map_err(CliError::other)?;
    let path = context.locate(&args.model)?;
    let jobs = Job::all(&tests, &args.clients(), threads, endpoint_for(&path)?);
    let bits = args.activation_bits.unwrap_or(context.config.activation_bits);
    let contenders = contenders(args, peers, &jobs, bits, context)?;
    let schedule = Schedule::new(args.rounds.get(), runs(&jobs, &contenders));
    let conditions = Conditions { model: path.clone(), threads, activation_bits: bits, rounds: args.rounds.get() };
    let mut comparison = Comparison::new(conditions, tests, contenders);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::io("start the threads"))?;
    let interrupted = runtime.block_on(async {
        let stop = pin!(async_runtime::stop_signal());
        // The future that does not finish is dropped, which kills its child process.
        tokio::select! {
            biased;
            _ = stop => true,
            () = measure(&mut comparison, schedule, &jobs, &path, context.terminal) => false,
        }
    });
    let is_empty = comparison.is_empty();
    if !(is_empty && interrupted) {
        print(&comparison.print(args.output))?;
    }
    match (interrupted, comparison.failures()) {
        (true, _) => Err(CliError::Interrupted),
        (false, Some(failures)) => Err(CliError::Failed(failures)),
        (false, None) => Ok(()),
    }
}

/// The API for the serving rows: chat, if the file has a chat template.
fn endpoint_for(path: &Path) -> Result<Endpoint, CliError> {
    let checkpoint = checkpoint::open(path).map_err(CliError::other)?;
    let template = checkpoint.optional_str("tokenizer.chat_template").map_err(CliError::other)?;
    Ok(if template.is_some() { Endpoint::Chat } else { Endpoint::Completions })
}

/// This program, and the peers. Each peer must be able to run at least one job.
fn contenders(
    args: &Args,
    found: Vec<Peer>,
    jobs: &[Job],
    activation_bits: ActivationBits,
    context: &Context,
) -> Result<Vec<Contender>, CliError> {
    let mut flash_attention = args.flash_attn.clone();
    flash_attention.sort_unstable();
    flash_attention.dedup();
    let program = std::env::current_exe().map_err(CliError::io("find this program's own file"))?;
    let keys = super::api_keys::api_keys(&context.config)?;
    let (config_file, api_key) = (context.config_file.clone(), keys.into_iter().next());
    let mut contenders = vec![Contender::ours(OwnProgram { program, config_file, api_key, activation_bits })];
    for (name, peer) in peer::names(&found).into_iter().zip(found) {
        let peer = Contender::peer(name, peer, flash_attention.clone());
        let missing: Vec<String> = jobs.iter().filter(|job| !job.can_be_run_by(&peer)).map(Job::name).collect();
        if missing.len() == jobs.len() {
            let (peer, rows) = (peer.describe(), missing.join(", "));
            return Err(CliError::Failed(format!(
                "{peer} lacks the program for {rows}; select other rows with --only"
            )));
        }
        if !missing.is_empty() {
            context.terminal.notice(&format!("{} lacks the program for {}", peer.describe(), missing.join(", ")));
        }
        contenders.push(peer);
    }
    Ok(contenders)
}

/// The runs of a round: each job with each contender that has the program for it, with each of its settings.
fn runs(jobs: &[Job], contenders: &[Contender]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        for (index, contender) in contenders.iter().enumerate().filter(|(_, contender)| job.can_be_run_by(contender)) {
            runs.extend(contender.settings().into_iter().map(|setting| Run { job: number, contender: index, setting }));
        }
    }
    runs
}

/// Makes all runs, and tells about each.
async fn measure(comparison: &mut Comparison, mut schedule: Schedule, jobs: &[Job], path: &Path, terminal: Terminal) {
    let rounds = comparison.rounds();
    while let Some(run) = schedule.next() {
        let (round, job) = (schedule.round(run), &jobs[run.job]);
        let contender = comparison.contender(run.contender);
        let name = contender.with_setting(run.setting);
        terminal.notice(&format!("round {round} of {rounds}: {name}, {}", job.name()));
        let (mut samples, started) = (Vec::new(), Instant::now());
        let record = |test: Test, value: f64| samples.push((test, value));
        let outcome = job.run(contender, run.setting, path, round - 1, terminal, record).await;
        schedule.record(run, started.elapsed());
        if let Err(error) = outcome {
            terminal.notice(&format!("{name}, {}: {}", job.name(), error_chain(&error)));
            comparison.fail(run.contender, run.setting, &job.name(), error_chain(&error));
            if samples.is_empty() {
                // It would fail again in later rounds.
                schedule.end(run);
            }
        }
        for &(test, value) in &samples {
            comparison.record(test, run.contender, run.setting, value);
        }
        end_slow_settings(comparison, &mut schedule, run, job);
        terminal.notice(&format!("  {}", progress(&samples, &schedule)));
    }
}

/// Leaves out a peer's setting with which it was clearly slower in every row of the job.
fn end_slow_settings(comparison: &Comparison, schedule: &mut Schedule, run: Run, job: &Job) {
    for setting in comparison.contender(run.contender).settings() {
        if comparison.is_clearly_slower(job.tests(), run.contender, setting) {
            schedule.end(Run { setting, ..run });
        }
    }
}

/// The figures of a run, and what is left: "prefill 512: 840 tok/s, decode 128: 180 tok/s (5 runs left, about 2 min)".
fn progress(samples: &[(Test, f64)], schedule: &Schedule) -> String {
    let figure = |(test, value): &(Test, f64)| format!("{}: {} {}", test.name(), number(*value), test.unit());
    let figures: Vec<String> = samples.iter().map(figure).collect();
    let figures = if figures.is_empty() { "no figure".to_owned() } else { figures.join(", ") };
    let left = match schedule.left() {
        0 => return figures,
        1 => "1 run left".to_owned(),
        runs => format!("{runs} runs left"),
    };
    let seconds = schedule.time_left().as_secs();
    let time = if seconds < 90 { format!("{} s", seconds.max(1)) } else { format!("{} min", (seconds + 30) / 60) };
    format!("{figures} ({left}, about {time})")
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(["compare", "demo"].iter().chain(words)).map(|line| line.args)
    }

    fn names(words: &[&str]) -> Vec<String> {
        parse(words).unwrap().tests().iter().map(Test::name).collect()
    }

    #[test]
    fn all_rows_are_measured_by_default() {
        let all = names(&[]);
        assert_eq!(all[..4], ["prefill 512", "prefill 2048", "decode 128", "decode 128 at depth 2048"]);
        assert_eq!(all.len(), 4 + 2 * 5 + 2, "{all:?}");
        assert_eq!(names(&["--only", "start,decode"]), ["decode 128", "cold start"]);
    }

    #[test]
    fn numbers_of_clients_are_sorted_and_unique() {
        let rows = names(&["--only", "serve", "--clients", "8,1,8"]);
        assert_eq!(rows, ["1 client", "8 clients", "1 client, first token", "8 clients, first token"]);
    }

    #[test]
    fn a_round_has_a_job_for_each_depth_and_one_for_serving() {
        let jobs = |words: &[&str]| {
            let args = parse(words).unwrap();
            let jobs = Job::all(&args.tests(), &args.clients(), 2, Endpoint::Chat);
            jobs.iter().map(Job::name).collect::<Vec<_>>()
        };
        assert_eq!(jobs(&[]), ["prefill and decode", "decode at depth 2048", "serving"]);
        assert_eq!(jobs(&["--only", "prefill,memory"]), ["prefill", "serving"]);
        assert_eq!(jobs(&["--only", "depth"]), ["decode at depth 2048"]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for wrong in [
            &["--only", "speed"][..],
            &["--rounds", "0"],
            &["--clients", "0"],
            &["--clients", ""],
            &["--flash-attn", "maybe"],
            &["-o", "csv"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
