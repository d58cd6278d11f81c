//! The Encoder actor owns the encoder of a model that takes media.
//!
//! Receives `Encode` from [`ModelMedia`](super::ModelMedia), `Loaded`, `Lost` and `Check` from its thread and itself. Answers
//! each job with rows, in the order of their arrival. A job whose request is gone is left out, or ends at its next tile.
//!
//! Loading and computing block, so they run on a thread of their own.
//!
//! Faults: a lost device, a panic or a media item that takes too long ends the actor. Its [keeper](super::keeper) starts another one,
//! and the jobs without a reply are sent again.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::LoadCancel;
use cuelight_engine::projector::MediaEncoder;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::thread::{EncoderThread, encode, start};
use crate::metrics::media::MediaMetrics;
use crate::pipeline::messages::{EncodeJob, EncoderMsg};
use crate::pipeline::model_source::{EngineHost, MediaModel};
use crate::pipeline::watchdog::Watchdog;

/// Startup arguments of the encoder.
pub(super) struct EncoderArguments {
    pub model: Arc<dyn MediaModel>,
    pub metrics: Arc<MediaMetrics>,
    /// Where the encoder runs.
    pub host: EngineHost,
    /// How long a media item may take before the encoder counts as lost.
    pub timeout: Duration,
}

/// The state of the encoder.
pub(super) struct EncoderState {
    place: Place,
    metrics: Arc<MediaMetrics>,
    timeout: Duration,
    watchdog: Watchdog,
    cancel: LoadCancel,
}

/// Where media are computed.
enum Place {
    Thread(EncoderThread),
    /// In this actor, for a simulated encoder.
    Here(Box<dyn MediaEncoder>),
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
                tracing::warn!(reason, "the media encoder is lost");
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
        tracing::info!("the media encoder is loaded");
        me.send_after(self.timeout, || EncoderMsg::Check);
    }

    /// Ends the actor if the thread has worked on one media item since the last check.
    fn check(&mut self, me: &ActorRef<EncoderMsg>) -> Result<(), ActorProcessingErr> {
        let Place::Thread(thread) = &self.place else { return Ok(()) };
        if self.watchdog.finds_the_same(thread.step()) {
            let reason = format!("a media item takes longer than {:?}", self.timeout);
            tracing::warn!(reason, "the media encoder is lost");
            return Err(reason.into());
        }
        me.send_after(self.timeout, || EncoderMsg::Check);
        Ok(())
    }
}
