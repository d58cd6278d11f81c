//! Answers the requests of all batches of a server, as far as there is room for them.
//!
//! A batch is a task ([`run`]). All batches share a bounded number of requests in flight, in the order in which they ask, so that
//! a short batch does not wait for the end of a long one. After a restart, batches that are not at their end start again, and their
//! [`ledger`] says which requests have an answer.

mod context;
mod ledger;
mod run;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use self::context::Context;
pub use self::context::{MOST_REQUESTS, RoutesOf};
use super::store::{BatchStore, now};

/// How often files and batches whose time is over are searched for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);

/// Answers batches until it is dropped.
#[derive(Debug)]
pub struct Worker(JoinHandle<()>);

impl Worker {
    /// Answers the batches of a store, at most `parallel` requests at the same time, each in at most `line_bytes`.
    #[must_use]
    pub fn start(store: Arc<BatchStore>, parallel: usize, line_bytes: usize, routes_of: RoutesOf) -> Self {
        store.count_batches();
        Worker(tokio::spawn(work(Context::new(store, parallel, line_bytes, routes_of))))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn work(context: Arc<Context>) {
    let mut changes = context.store.changes();
    let mut expiry = interval(EXPIRY_INTERVAL);
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Aborted when it is dropped, like the requests of each batch.
    let mut running: JoinSet<String> = JoinSet::new();
    let mut started: HashSet<String> = HashSet::new();
    loop {
        for batch in context.store.unfinished() {
            if started.insert(batch.id.clone()) {
                running.spawn(run::run(context.clone(), batch.id.clone()));
            }
        }
        tokio::select! {
            // The store outlives its worker.
            _ = changes.changed() => {}
            Some(ended) = running.join_next() => match ended {
                Ok(id) => drop(started.remove(&id)),
                Err(panic) => tracing::error!(%panic, "a batch stays where it is until the server is restarted"),
            },
            _ = expiry.tick() => {
                let store = context.store.clone();
                drop(spawn_blocking(move || store.remove_expired(now())));
            }
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;

    use super::super::store::{BatchRecord, NewBatch, Protocol, Status};
    use super::*;

    const ENDPOINT: &str = "/v1/embeddings";

    fn batch_of(store: &BatchStore, requests: usize) -> Arc<BatchRecord> {
        let line = |number| format!("{{\"custom_id\": \"{number}\", \"url\": \"{ENDPOINT}\", \"body\": {{}}}}\n");
        fs::write(store.content_path("file-1"), (0..requests).map(line).collect::<String>()).unwrap();
        let (protocol, input_file) = (Protocol::Anthropic, "file-1".to_owned());
        let new =
            NewBatch { owner: None, protocol, endpoint: ENDPOINT.to_owned(), input_file, metadata: None, total: 0 };
        store.add_batch(new).unwrap()
    }

    async fn ended(store: &BatchStore, batch: &BatchRecord) -> Arc<BatchRecord> {
        let mut changes = store.changes();
        loop {
            let batch = store.any_batch(&batch.id).unwrap();
            if batch.status.is_end() {
                return batch;
            }
            changes.changed().await.unwrap();
        }
    }

    #[tokio::test]
    async fn requests_without_an_answer_expire() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        let batch = batch_of(&store, 5);
        store.change(&batch.id, |batch| batch.expires_at = now()).unwrap();
        let routes = Router::new().route(ENDPOINT, post(pending::<StatusCode>));
        let _worker = Worker::start(store.clone(), 2, 1000, Box::new(move |_| routes.clone()));
        let batch = ended(&store, &batch).await;
        assert_eq!((batch.status, batch.tally.expired, batch.total), (Status::Expired, 5, 5));
        let errors = fs::read_to_string(store.content_path(&batch.error_file)).unwrap();
        assert_eq!(errors.matches("batch_expired").count(), 5, "{errors}");
        assert!(!store.content_path(&batch.output_file).exists());
    }

    #[tokio::test]
    async fn refused_requests_are_repeated_and_the_number_in_flight_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        let (calls, running, most) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (seen, peak) = (calls.clone(), most.clone());
        let answer = move || async move {
            let call = seen.fetch_add(1, Ordering::Relaxed);
            peak.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(2)).await;
            running.fetch_sub(1, Ordering::Relaxed);
            let is_full = call == 1;
            (if is_full { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }, [("retry-after", "0")], "{}")
        };
        let routes = Router::new().route(ENDPOINT, post(answer));
        let batch = batch_of(&store, 20);
        let _worker = Worker::start(store.clone(), 3, 1000, Box::new(move |_| routes.clone()));
        let batch = ended(&store, &batch).await;
        assert_eq!((batch.status, batch.tally.succeeded), (Status::Completed, 20));
        assert_eq!((calls.load(Ordering::Relaxed), most.load(Ordering::Relaxed)), (21, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_until_there_is_space_for_its_answers() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1000).unwrap();
        let routes = Router::new().route(ENDPOINT, post(async || "{}"));
        let batch = batch_of(&store, 3);
        store.add_written(1000);
        let _worker = Worker::start(store.clone(), 2, 1000, Box::new(move |_| routes.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let waiting = store.any_batch(&batch.id).unwrap();
        assert_eq!((waiting.status, waiting.tally.succeeded), (Status::InProgress, 0));
        fs::write(store.content_path("file-2"), "x".repeat(1000)).unwrap();
        store.remove_content("file-2").unwrap();
        let batch = ended(&store, &batch).await;
        assert_eq!((batch.status, batch.tally.succeeded), (Status::Completed, 3));
    }
}
