//! `cuelight batch`: the answers to a file of requests, without a server.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use tokio::sync::Semaphore;

use super::local_routes::local_routes;
use super::run::start;
use super::server_options::server_options;
use super::{CliError, Context, async_runtime, model, model_help};
use crate::config::flags::{Flags, ModelFlags};
use crate::config::{Config, Given};
use crate::serving::batch::answer::{Answer, Usage};
use crate::serving::batch::answers::{Answers, Done};
use crate::serving::batch::error::BatchError;
use crate::serving::batch::requests::{self, BatchRequest, Rules};
use crate::serving::batch::sender::Sender;

/// Answer the requests of a file, in the format of OpenAI's Batch API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight batch ./model.gguf requests.jsonl answers.jsonl
  cuelight batch org/repo requests.jsonl answers.jsonl --max-seqs 32

Each line of REQUESTS is a request:
  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",
   \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}}

Each line of ANSWERS is an answer, in the order in which they are ready. After an interruption the same command continues: requests \
that have an answer are not sent again. The exit code is 1 if a request failed.")]
pub struct Args {
    #[arg(value_name = "MODEL", help = format!("The model that answers, whatever the requests name: {}", model_help::FORMS))]
    model: String,
    /// The file of requests, one JSON object per line.
    #[arg(value_name = "REQUESTS")]
    requests: PathBuf,
    /// The file that answers are appended to.
    #[arg(value_name = "ANSWERS")]
    answers: PathBuf,
    /// Requests that are answered at the same time [default: twice as many as --max-seqs]
    #[arg(long, value_name = "N")]
    parallel: Option<NonZeroUsize>,
    #[command(flatten)]
    flags: Flags<ModelFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }

    /// Twice as many as are computed at once, so that one is ready when another ends.
    fn parallel(&self, config: &Config) -> usize {
        self.parallel.map_or(2 * config.max_seqs.get() * config.replicas.get(), NonZeroUsize::get)
    }
}

/// Answers the requests.
///
/// # Errors
/// [`CliError`] when a file or the model cannot be read, or a request failed.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let options = server_options(&context.config)?;
    // A mistake in the last line is found before hours of answers.
    let rules = Rules { line_bytes: options.max_body_bytes, requests: usize::MAX, endpoint: None };
    let ids = requests::check(&args.requests, &rules).map_err(CliError::other)?;
    let (answers, done) = Answers::open(&args.answers, &ids).map_err(CliError::other)?;
    let total = ids.len();
    if done.ids.len() == total {
        context.terminal.notice(&format!("all {total} requests have an answer in {}", args.answers.display()));
        return Summary::of(&done, total).result();
    }
    let tokio = async_runtime::tokio_runtime()?;
    let started = start::start(&args.model, model::PlanDetail::Line, context, &tokio)?;
    let router = local_routes(&args.model, &started, options, &context.config)?;
    let slots = Arc::new(Semaphore::new(args.parallel(&context.config)));
    let sender = Sender { router, slots, is_patient: false };
    let mut summary = Summary::of(&done, total);
    let ended = tokio.block_on(async {
        let ended = tokio::select! {
            ended = answer_all(args, (context, &rules), &sender, (answers, done), &mut summary) => ended,
            signal = async_runtime::stop_signal() => signal.and(Err(CliError::Interrupted)),
        };
        // Requests that were cancelled end before the model does, so that none is reported as failed.
        started.runtime.shutdown(Duration::from_secs(1)).await;
        ended
    });
    tokio.shutdown_background();
    context.terminal.notice(&summary.line(&args.answers));
    ended?;
    summary.result()
}

/// Answers the requests that have no answer yet.
async fn answer_all(
    args: &Args,
    (context, rules): (&Context, &Rules),
    sender: &Sender,
    (mut answers, done): (Answers, Done),
    summary: &mut Summary,
) -> Result<(), CliError> {
    let bar = context.terminal.count_bar("answering", summary.total, "requests");
    bar.set_position(done.ids.len() as u64);
    let is_open = |request: &Result<BatchRequest, BatchError>| match request {
        Ok(request) => !done.ids.contains(&request.custom_id),
        Err(_) => true,
    };
    let requests = requests::read(&args.requests, rules.line_bytes).map_err(CliError::other)?.filter(is_open);
    let answered = stream::iter(requests).map(async |request| Ok(sender.answer(request?).await));
    let mut answered = std::pin::pin!(answered.buffer_unordered(args.parallel(&context.config)));
    while let Some(answer) = answered.next().await {
        let answer: Answer = answer.map_err(|error: BatchError| CliError::other(error))?;
        answers.write(&answer).map_err(CliError::other)?;
        summary.add(&answer);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// What was answered.
struct Summary {
    began: Instant,
    total: usize,
    before: usize,
    now: usize,
    failed: usize,
    prompt_tokens: u64,
    generated_tokens: u64,
    first_failure: Option<String>,
}

impl Summary {
    /// Before the first answer of this run.
    fn of(done: &Done, total: usize) -> Self {
        Summary {
            began: Instant::now(),
            total,
            before: done.ids.len(),
            now: 0,
            failed: done.tally.without_success(),
            prompt_tokens: 0,
            generated_tokens: 0,
            first_failure: done.first_failure.clone(),
        }
    }

    fn add(&mut self, answer: &Answer) {
        self.now += 1;
        let Usage { input, output, .. } = answer.usage();
        self.prompt_tokens += input;
        self.generated_tokens += output;
        if let Some(failure) = answer.failure() {
            self.failed += 1;
            self.first_failure.get_or_insert(failure);
        }
    }

    fn line(&self, answers: &Path) -> String {
        let Summary { total, now, prompt_tokens, generated_tokens, .. } = self;
        let seconds = self.began.elapsed().max(Duration::from_millis(1)).as_secs_f64();
        let (answered, rate) = (self.before + now, *generated_tokens as f64 / seconds);
        format!(
            "{answered} of {total} requests have an answer in {}; {now} were answered in {seconds:.1} s, with {prompt_tokens} \
             prompt tokens and {generated_tokens} generated tokens ({rate:.1} per second)",
            answers.display()
        )
    }

    fn result(&self) -> Result<(), CliError> {
        let Summary { total, failed, .. } = self;
        match &self.first_failure {
            None => Ok(()),
            Some(first) => Err(CliError::Failed(format!("{failed} of {total} requests failed; the first: {first}"))),
        }
    }
}
