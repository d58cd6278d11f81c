//! The Encoder actor owns the encoder of a model that takes images.
//!
//! Receives `Encode` from [`ModelImages`](super::ModelImages), `Loaded`, `Lost` and `Check` from its thread and itself. Answers
//! each job with rows, in the order of their arrival. A job whose request is gone is left out, or ends at its next tile.
//!
//! Loading and computing block, so they run on a thread of their own.
//!
//! Faults: a lost device, a panic or an image that takes too long ends the actor. Its [keeper](super::keeper) starts another one,
//! and the jobs without a reply are sent again.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::LoadCancel;
use cuelight_engine::vision::ImageEncoder;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::thread::{EncoderThread, encode, start};
use crate::metrics::images::ImageMetrics;
use crate::pipeline::messages::{EncodeJob, EncoderMsg};
use crate::pipeline::model_source::{EngineHost, VisionModel};
use crate::pipeline::watchdog::Watchdog;

/// Startup arguments of the encoder.
pub(super) struct EncoderArguments {
    pub model: Arc<dyn VisionModel>,
    pub metrics: Arc<ImageMetrics>,
    /// Where the encoder runs.
    pub host: EngineHost,
    /// How long an image may take before the encoder counts as lost.
    pub timeout: Duration,
}

/// The state of the encoder.
pub(super) struct EncoderState {
    place: Place,
    metrics: Arc<ImageMetrics>,
    timeout: Duration,
    watchdog: Watchdog,
    cancel: LoadCancel,
}

/// Where images are computed.
enum Place {
    Thread(EncoderThread),
    /// In this actor, for a simulated encoder.
    Here(Box<dyn ImageEncoder>),
}

impl Drop for EncoderState {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The encoder actor.
pub(super) struct Encoder;

impl Actor for Encoder {
    type Msg = EncoderMsg;
    type State = EncoderState;
    type Arguments = EncoderArguments;

    async fn pre_start(
        &self,
        me: ActorRef<EncoderMsg>,
        arguments: EncoderArguments,
    ) -> Result<EncoderState, ActorProcessingErr> {
        let EncoderArguments { model, metrics, host, timeout } = arguments;
        let cancel = LoadCancel::default();
        let place = match host {
            EngineHost::Thread => Place::Thread(start(model, metrics.clone(), cancel.clone(), me)?),
            EngineHost::VirtualTime => Place::Here(model.load(&cancel).map_err(|error| error.to_string())?),
        };
        Ok(EncoderState { place, metrics, timeout, watchdog: Watchdog::default(), cancel })
    }

    async fn handle(
        &self,
        me: ActorRef<EncoderMsg>,
        message: EncoderMsg,
        state: &mut EncoderState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            EncoderMsg::Encode(job) => state.encode(job)?,
            EncoderMsg::Loaded => state.loaded(&me),
            EncoderMsg::Check => state.check(&me)?,
            EncoderMsg::Lost(reason) => {
                tracing::warn!(reason, "the image encoder is lost");
                return Err(reason.into());
            }
        }
        Ok(())
    }
}

impl EncoderState {
    fn encode(&mut self, job: EncodeJob) -> Result<(), ActorProcessingErr> {
        match &mut self.place {
            Place::Thread(thread) => thread.send(job),
            Place::Here(encoder) => Ok(encode(&mut **encoder, job, &self.metrics)?),
        }
    }

    fn loaded(&self, me: &ActorRef<EncoderMsg>) {
        tracing::info!("the image encoder is loaded");
        me.send_after(self.timeout, || EncoderMsg::Check);
    }

    /// Ends the actor if the thread has worked on one image since the last check.
    fn check(&mut self, me: &ActorRef<EncoderMsg>) -> Result<(), ActorProcessingErr> {
        let Place::Thread(thread) = &self.place else { return Ok(()) };
        if self.watchdog.finds_the_same(thread.step()) {
            let reason = format!("an image takes longer than {:?}", self.timeout);
            tracing::warn!(reason, "the image encoder is lost");
            return Err(reason.into());
        }
        me.send_after(self.timeout, || EncoderMsg::Check);
        Ok(())
    }
}
