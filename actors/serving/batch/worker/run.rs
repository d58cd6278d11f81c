//! One batch, from the check of its file to the end of its files of answers.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::context::Context;
use super::ledger::Ledger;
use crate::core::error_chain::error_chain;
use crate::serving::batch::answer::{Answer, UnsentCode};
use crate::serving::batch::error::BatchError;
use crate::serving::batch::requests::{self, BatchRequest, Requests};
use crate::serving::batch::store::error::BatchStoreError;
use crate::serving::batch::store::{BatchRecord, Problem, Protocol, Status, now};

/// Pause before a batch that the disk has stopped continues, and between looks at the space that is left.
const PAUSE: Duration = Duration::from_secs(10);

/// Why a batch does not go on.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    File(#[from] BatchError),
    #[error(transparent)]
    Store(#[from] BatchStoreError),
}

/// Runs a batch to its end. Returns its id.
pub(super) async fn run(context: Arc<Context>, id: String) -> String {
    while let Some(batch) = context.store.any_batch(&id).filter(|batch| !batch.status.is_end()) {
        if let Err(error) = complete(&context, batch).await {
            tracing::error!(batch = id, error = error_chain(&error), "a batch could not go on; it is tried again");
            sleep(PAUSE).await;
        }
    }
    id
}

async fn complete(context: &Arc<Context>, batch: Arc<BatchRecord>) -> Result<(), RunError> {
    // A batch that is stopped needs no turn: its end takes little.
    let _turn = tokio::select! {
        // The semaphore is never closed.
        turn = context.running.acquire() => turn.ok(),
        () = stopped(context, &batch) => None,
    };
    let Some(ids) = validate(context, &batch).await? else { return Ok(()) };
    let ledger = open_ledger(context, &batch, ids).await?;
    let run = Run { context: context.clone(), batch, ledger };
    tokio::select! {
        answered = run.answer_all() => answered?,
        () = stopped(context, &run.batch) => {}
    }
    run.end().await
}

/// Ends when a batch is cancelled or its time is over.
async fn stopped(context: &Context, batch: &BatchRecord) {
    let mut changes = context.store.changes();
    let cancelled = async {
        // The store outlives its batches.
        while !context.is_cancelled(&batch.id) && changes.changed().await.is_ok() {}
    };
    let left = Duration::from_secs(batch.expires_at.saturating_sub(now()));
    tokio::select! {
        () = cancelled => {}
        () = sleep(left) => {}
    }
}

/// Checks the file of a batch. `None`: it has failed, and its status says so.
async fn validate(context: &Arc<Context>, batch: &BatchRecord) -> Result<Option<HashSet<String>>, RunError> {
    let (path, rules) = (context.store.content_path(&batch.input_file), context.rules(batch));
    let (checked, store, id) =
        (blocking(move || Ok(requests::check(&path, &rules))).await?, context.store.clone(), batch.id.clone());
    let problem = match checked {
        Ok(ids) => {
            let total = ids.len();
            let begin = move |batch: &mut BatchRecord| {
                batch.total = total;
                if batch.status == Status::Validating {
                    batch.enter(Status::InProgress, now());
                }
            };
            blocking(move || Ok(store.change(&id, begin))).await??;
            return Ok(Some(ids));
        }
        Err(error) => problem(error)?,
    };
    let fail = move |batch: &mut BatchRecord| {
        batch.problem = Some(problem);
        let status = if batch.status == Status::Cancelling { Status::Cancelled } else { Status::Failed };
        batch.enter(status, now());
    };
    blocking(move || Ok(store.change(&id, fail))).await??;
    Ok(None)
}

/// What the client is told of a wrong file. Errors of the disk are not the client's.
fn problem(error: BatchError) -> Result<Problem, BatchError> {
    match error {
        BatchError::Line { line, reason, .. } => Ok(Problem {
            code: reason.code().to_owned(),
            message: format!("line {line} is no request of this batch: {reason}"),
            line: Some(line),
            param: reason.param().map(str::to_owned),
        }),
        BatchError::Empty(_) => Ok(Problem {
            code: "empty_file".to_owned(),
            message: "the file has no requests".to_owned(),
            line: None,
            param: None,
        }),
        // The operator has removed it.
        BatchError::Io { source, .. } if source.kind() == ErrorKind::NotFound => Ok(Problem {
            code: "file_not_found".to_owned(),
            message: "the file of requests is not there any more".to_owned(),
            line: None,
            param: None,
        }),
        other => Err(other),
    }
}

async fn open_ledger(
    context: &Arc<Context>,
    batch: &Arc<BatchRecord>,
    ids: HashSet<String>,
) -> Result<Arc<Mutex<Ledger>>, BatchError> {
    let (store, batch) = (context.store.clone(), batch.clone());
    blocking(move || {
        let ledger = Ledger::open(&store, &batch, ids)?;
        store.note_progress(&batch.id, ledger.tally);
        Ok(Arc::new(Mutex::new(ledger)))
    })
    .await
}

/// A batch whose requests are answered.
struct Run {
    context: Arc<Context>,
    batch: Arc<BatchRecord>,
    ledger: Arc<Mutex<Ledger>>,
}

impl Run {
    /// Answers the requests that have no answer yet.
    async fn answer_all(&self) -> Result<(), BatchError> {
        let sender = self.context.sender(&self.batch);
        let mut open = Some(self.open_requests().await?);
        let mut in_flight: JoinSet<Answer> = JoinSet::new();
        loop {
            while in_flight.len() < self.context.parallel && self.context.store.has_room() {
                let Some(requests) = open.take() else { break };
                let (requests, next) = self.next_open(requests).await?;
                if let Some(request) = next {
                    open = Some(requests);
                    let sender = sender.clone();
                    in_flight.spawn(async move { sender.answer(request).await });
                }
            }
            tokio::select! {
                Some(answer) = in_flight.join_next() => {
                    self.write(answer.map_err(|panic| BatchError::Panicked(panic.to_string()))?).await?;
                }
                // Perhaps there is no space, and none of its requests is in flight.
                () = sleep(PAUSE), if open.is_some() => self.tell_wait(),
                else => return Ok(()),
            }
        }
    }

    fn tell_wait(&self) {
        if !self.context.store.has_room() {
            tracing::warn!(batch = self.batch.id, "a batch waits: the space for files of batches is used up");
        }
    }

    async fn open_requests(&self) -> Result<Requests, BatchError> {
        let (path, line_bytes) = (self.context.store.content_path(&self.batch.input_file), self.context.line_bytes);
        blocking(move || requests::read(&path, line_bytes)).await
    }

    /// The next request without an answer.
    async fn next_open(&self, mut requests: Requests) -> Result<(Requests, Option<BatchRequest>), BatchError> {
        let ledger = self.ledger.clone();
        blocking(move || {
            for request in requests.by_ref() {
                let request = request?;
                if !lock(&ledger).has(&request.custom_id) {
                    return Ok((requests, Some(request)));
                }
            }
            Ok((requests, None))
        })
        .await
    }

    async fn write(&self, answer: Answer) -> Result<(), BatchError> {
        let (store, ledger, id) = (self.context.store.clone(), self.ledger.clone(), self.batch.id.clone());
        blocking(move || {
            let mut ledger = lock(&ledger);
            store.add_written(ledger.write(&answer)?);
            store.note_progress(&id, ledger.tally);
            Ok(())
        })
        .await
    }

    /// Completes the files of answers, and then shows them to the client.
    async fn end(self) -> Result<(), RunError> {
        let Run { context, batch, ledger } = self;
        let reason = if context.is_cancelled(&batch.id) { UnsentCode::Cancelled } else { UnsentCode::Expired };
        let store = context.store.clone();
        let ended = blocking(move || {
            let mut ledger = lock(&ledger);
            store.add_written(ledger.close(reason)?);
            ledger.sync()?;
            Ok(finish(&context, &batch, &ledger))
        });
        Ok(ended.await??)
    }
}

/// Publishes the files of a batch whose requests all have an answer, and enters its last status.
fn finish(context: &Context, batch: &BatchRecord, ledger: &Ledger) -> Result<(), BatchStoreError> {
    let (store, tally, id) = (&context.store, ledger.tally, batch.id.as_str());
    let finalizing = |batch: &mut BatchRecord| {
        batch.tally = tally;
        batch.enter(Status::Finalizing, now());
    };
    store.change(id, finalizing)?;
    for (file, count, name) in
        [(&batch.output_file, tally.succeeded, "output"), (&batch.error_file, tally.without_success(), "error")]
    {
        match count {
            0 => store.remove_content(file)?,
            _ if batch.protocol == Protocol::OpenAi => store.publish(batch, file, format!("{id}_{name}.jsonl"))?,
            _ => {}
        }
    }
    let last = |batch: &mut BatchRecord| {
        let status = match batch.status {
            Status::Cancelling => Status::Cancelled,
            _ if tally.expired > 0 => Status::Expired,
            _ => Status::Completed,
        };
        batch.enter(status, now());
    };
    store.change(id, last).map(drop)
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work with files on a thread where it delays no connection.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BatchError> + Send + 'static,
) -> Result<T, BatchError> {
    spawn_blocking(work).await.map_err(|panic| BatchError::Panicked(panic.to_string()))?
}
