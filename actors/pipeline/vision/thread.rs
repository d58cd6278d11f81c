//! The thread that loads the encoder and computes the rows of images.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use cuelight_engine::engine::EngineError;
use cuelight_engine::heap::release_freed;
use cuelight_engine::load::LoadCancel;
use cuelight_engine::vision::ImageEncoder;
use ractor::{ActorProcessingErr, ActorRef};

use crate::core::panic_message::panic_message;
use crate::metrics::images::ImageMetrics;
use crate::pipeline::messages::{EncodeError, EncodeJob, EncoderMsg};
use crate::pipeline::model_source::VisionModel;

/// The thread of an encoder. It ends when this is dropped.
pub(super) struct EncoderThread {
    jobs: mpsc::Sender<EncodeJob>,
    progress: Arc<Progress>,
}

/// What the thread has done.
#[derive(Default)]
struct Progress {
    images: AtomicU64,
    is_working: AtomicBool,
}

impl EncoderThread {
    /// Starts the thread, which loads the encoder and reports to `me`.
    pub fn start(
        model: Arc<dyn VisionModel>,
        metrics: Arc<ImageMetrics>,
        cancel: LoadCancel,
        me: ActorRef<EncoderMsg>,
    ) -> std::io::Result<Self> {
        let (jobs, receiver) = mpsc::channel();
        let progress = Arc::<Progress>::default();
        let worker = Worker { model, metrics, cancel, receiver, progress: progress.clone(), me };
        thread::Builder::new().name("cuelight-images".into()).spawn(move || {
            let me = worker.me.clone();
            let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
            release_freed();
            let reason = match result {
                Ok(Ok(())) => return,
                Ok(Err(reason)) => reason,
                Err(panic) => format!("the image encoder panicked: {}", panic_message(panic.as_ref())),
            };
            // Fails only when the actor is gone, and then the thread was expected to end.
            let _ = me.cast(EncoderMsg::Lost(reason));
        })?;
        Ok(EncoderThread { jobs, progress })
    }

    /// Passes an image on.
    pub fn send(&self, job: EncodeJob) -> Result<(), ActorProcessingErr> {
        self.jobs.send(job).map_err(|_| "the thread of the image encoder has ended".into())
    }

    /// The number of the image that it works on. If two calls return the same, it has worked on that image all the time between.
    pub fn image(&self) -> Option<u64> {
        // In this order: an image that ends between the two is not taken for the next one.
        let images = self.progress.images.load(Ordering::Acquire);
        self.progress.is_working.load(Ordering::Acquire).then_some(images)
    }
}

struct Worker {
    model: Arc<dyn VisionModel>,
    metrics: Arc<ImageMetrics>,
    cancel: LoadCancel,
    receiver: mpsc::Receiver<EncodeJob>,
    progress: Arc<Progress>,
    me: ActorRef<EncoderMsg>,
}

impl Worker {
    /// Loads the encoder, then computes images until the actor is gone. The error is the reason why it cannot go on.
    fn run(self) -> Result<(), String> {
        let mut encoder = self.model.load(&self.cancel).map_err(|error| error.to_string())?;
        let _ = self.me.cast(EncoderMsg::Loaded);
        while let Ok(job) = self.receiver.recv() {
            if job.cancel.is_cancelled() {
                continue;
            }
            self.progress.is_working.store(true, Ordering::Release);
            let encoded = encode(&mut *encoder, job, &self.metrics);
            self.progress.images.fetch_add(1, Ordering::AcqRel);
            self.progress.is_working.store(false, Ordering::Release);
            encoded?;
        }
        Ok(())
    }
}

/// Computes the rows of an image and replies. The error is the reason why the encoder cannot go on; then there is no reply.
pub(super) fn encode(encoder: &mut dyn ImageEncoder, job: EncodeJob, metrics: &ImageMetrics) -> Result<(), String> {
    let began = Instant::now();
    let EncodeJob { image, cancel, reply } = job;
    let rows = match encoder.encode(&image, &cancel) {
        Ok(rows) => {
            metrics.encoded(began.elapsed());
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
