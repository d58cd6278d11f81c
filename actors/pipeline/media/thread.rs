//! The thread that loads the encoder and computes the rows of media.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use cuelight_engine::engine::EngineError;
use cuelight_engine::load::LoadCancel;
use cuelight_engine::projector::MediaEncoder;
use ractor::ActorRef;

use crate::metrics::media::MediaMetrics;
use crate::pipeline::companion_thread::{CompanionThread, Progress};
use crate::pipeline::messages::{EncodeError, EncodeJob, EncoderMsg};
use crate::pipeline::model_source::MediaModel;

/// The thread of an encoder.
pub(super) type EncoderThread = CompanionThread<EncodeJob>;

/// Starts the thread, which loads the encoder and reports to `me`.
///
/// # Errors
/// When the system starts no thread.
pub(super) fn start(
    model: Arc<dyn MediaModel>,
    metrics: Arc<MediaMetrics>,
    cancel: LoadCancel,
    me: ActorRef<EncoderMsg>,
) -> std::io::Result<EncoderThread> {
    let actor = me.clone();
    let run = move |receiver: mpsc::Receiver<EncodeJob>, progress: &Progress| {
        Worker { model, metrics, cancel, receiver, progress, me }.run()
    };
    // Fails only when the actor is gone, and then the thread was expected to end.
    let lost = move |reason| drop(actor.cast(EncoderMsg::Lost(reason)));
    CompanionThread::start(("cuelight-media", "media encoder"), run, lost)
}

struct Worker<'a> {
    model: Arc<dyn MediaModel>,
    metrics: Arc<MediaMetrics>,
    cancel: LoadCancel,
    receiver: mpsc::Receiver<EncodeJob>,
    progress: &'a Progress,
    me: ActorRef<EncoderMsg>,
}

impl Worker<'_> {
    /// Loads the encoder, then computes media until the actor is gone. The error is the reason why it cannot go on.
    fn run(self) -> Result<(), String> {
        let mut encoder = self.model.load(&self.cancel).map_err(|error| error.to_string())?;
        let _ = self.me.cast(EncoderMsg::Loaded);
        while let Ok(job) = self.receiver.recv() {
            if job.cancel.is_cancelled() {
                continue;
            }
            self.progress.of(|| encode(&mut *encoder, job, &self.metrics))?;
        }
        Ok(())
    }
}

/// Computes the rows of a media item and replies. The error is the reason why the encoder cannot go on; then there is no reply.
pub(super) fn encode(encoder: &mut dyn MediaEncoder, job: EncodeJob, metrics: &MediaMetrics) -> Result<(), String> {
    let began = Instant::now();
    let EncodeJob { media, cancel, reply } = job;
    let kind = media.kind();
    let rows = match encoder.encode(&media, &cancel) {
        Ok(rows) => {
            metrics.encoded(kind, began.elapsed());
            Ok(rows)
        }
        // No request reads the reply.
        Err(_) if cancel.is_cancelled() => return Ok(()),
        Err(EngineError::InvalidStep { reason, .. }) => Err(EncodeError::Failed(reason)),
        Err(error) => return Err(error.to_string()),
    };
    // Fails only when the request is gone.
    let _ = reply.send(rows);
    Ok(())
}
