//! Keeps an encoder running: starts it, and another one when it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorRef};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::encoder::{Encoder, EncoderArguments};
use crate::metrics::media::MediaMetrics;
use crate::metrics::restarted;
use crate::pipeline::messages::EncoderMsg;
use crate::pipeline::model_source::{EngineHost, MediaModel};
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::restart::{RestartHistory, RestartPolicy};

/// How the media of a model are computed and kept.
#[derive(Debug, Clone)]
pub struct EncoderOptions {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Where the encoder runs.
    pub host: EngineHost,
    /// How long a media item may take before the encoder counts as lost.
    pub timeout: Duration,
    /// How often the encoder is restarted after faults.
    pub restarts: RestartPolicy,
    /// Most bytes of rows that are kept.
    pub cache_bytes: usize,
}

impl EncoderOptions {
    /// As the pipelines of the model.
    #[must_use]
    pub fn of_runtime(options: &RuntimeOptions, host: EngineHost) -> Self {
        EncoderOptions {
            model_id: options.model_id.clone(),
            host,
            timeout: options.step_timeout,
            restarts: options.restarts,
            cache_bytes: options.media_cache_bytes,
        }
    }
}

/// Whether there is an encoder.
#[derive(Debug, Clone)]
pub(super) enum Availability {
    /// It is being started.
    Starting,
    /// It takes jobs, also while it is being loaded.
    Running(ActorRef<EncoderMsg>),
    /// There will be none, for this reason.
    Ended(String),
}

/// The running encoder. It stops when this is dropped.
pub(super) struct Keeper {
    availability: watch::Sender<Availability>,
    is_stopping: AtomicBool,
    /// Wakes a pause before a restart.
    stopped: Notify,
}

impl Keeper {
    /// Starts an encoder, and another one whenever it is lost.
    pub fn start(model: Arc<dyn MediaModel>, metrics: Arc<MediaMetrics>, options: EncoderOptions) -> KeeperGuard {
        let (availability, is_stopping) = (watch::Sender::new(Availability::Starting), AtomicBool::new(false));
        let keeper = Arc::new(Keeper { availability, is_stopping, stopped: Notify::new() });
        let guard = KeeperGuard(keeper.clone());
        tokio::spawn(async move { keeper.keep(model, metrics, options).await });
        guard
    }

    async fn keep(&self, model: Arc<dyn MediaModel>, metrics: Arc<MediaMetrics>, options: EncoderOptions) {
        let mut history = RestartHistory::default();
        while !self.is_stopping.load(Ordering::Acquire) {
            let EncoderOptions { host, timeout, .. } = options;
            let arguments = EncoderArguments { model: model.clone(), metrics: metrics.clone(), host, timeout };
            match Actor::spawn(None, Encoder, arguments).await {
                Ok((actor, ended)) => {
                    history.set_running(true, Instant::now());
                    self.runs(actor);
                    let _ = ended.await;
                }
                Err(error) => tracing::warn!(%error, "the media encoder was not started"),
            }
            let now = Instant::now();
            history.set_running(false, now);
            if self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            self.set(Availability::Starting);
            restarted(&options.model_id, "media_encoder");
            let Some(pause) = history.next(now, &options.restarts) else {
                tracing::error!("the media encoder failed too often: media are refused from now on");
                return self.set(Availability::Ended("its media encoder failed too often".to_owned()));
            };
            tracing::warn!(actor = "media_encoder", ?pause, "restarting after a fault");
            let _ = tokio::time::timeout(pause, self.stopped.notified()).await;
        }
    }

    fn runs(&self, actor: ActorRef<EncoderMsg>) {
        self.set(Availability::Running(actor.clone()));
        // It may have been stopped before it was known.
        if self.is_stopping.load(Ordering::Acquire) {
            actor.stop(None);
        }
    }

    /// Changes the availability, unless it has ended.
    fn set(&self, availability: Availability) {
        self.availability.send_if_modified(|before| match before {
            Availability::Ended(_) => false,
            before => {
                *before = availability;
                true
            }
        });
    }

    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Availability::Running(actor) = &*self.availability.borrow() {
            actor.stop(None);
        }
        self.stopped.notify_one();
        self.set(Availability::Ended("it is being unloaded".to_owned()));
    }
}

/// Stops the encoder when dropped.
pub(super) struct KeeperGuard(Arc<Keeper>);

impl KeeperGuard {
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.0.availability.subscribe()
    }

    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        self.0.stop();
    }
}
