//! The media of a model: how they are prepared, and where their rows come from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_engine::load::LoadCancel;
use cuelight_engine::media::{MediaKind, MediaSpec};
use cuelight_engine::projector::{MediaPreparation, PreparedMedia};
use ractor::{ActorId, ActorRef};
use tokio::sync::{Semaphore, oneshot, watch};

use super::cache::{CachedMedia, MediaCache, MediaId};
use super::keeper::{Availability, EncoderOptions, Keeper, KeeperGuard};
use crate::core::prompt_media::{EncodedMedia, MediaParts};
use crate::metrics::media::MediaMetrics;
use crate::pipeline::messages::{EncodeError, EncodeJob, EncoderMsg};
use crate::pipeline::model_source::MediaModel;

/// How often a media item is sent to an encoder that is lost over it.
const ATTEMPTS: usize = 3;

/// The media of a model that takes them. All replicas share it.
pub struct ModelMedia {
    preparation: MediaPreparation,
    /// How many more media may be decoded or wait for the encoder now, which bounds the memory of their pixels and samples.
    slots: Arc<Semaphore>,
    cache: Mutex<MediaCache>,
    metrics: Arc<MediaMetrics>,
    keeper: KeeperGuard,
}

impl ModelMedia {
    /// Most media of one model that are decoded or wait for the encoder at the same time.
    pub const SLOTS: usize = 4;

    /// Starts the encoder of a model. It stops when the handle is dropped.
    #[must_use]
    pub fn start(model: Arc<dyn MediaModel>, options: EncoderOptions) -> Arc<Self> {
        let metrics = Arc::new(MediaMetrics::new(&options.model_id));
        Arc::new(ModelMedia {
            preparation: model.preparation(),
            slots: Arc::new(Semaphore::new(Self::SLOTS)),
            cache: Mutex::new(MediaCache::new(options.cache_bytes)),
            keeper: Keeper::start(model, metrics.clone(), options),
            metrics,
        })
    }

    /// How the model takes media of a kind; `None` if it takes none.
    #[must_use]
    pub fn spec(&self, kind: MediaKind) -> Option<&MediaSpec> {
        self.preparation.spec(kind)
    }

    /// The kinds that the model takes.
    pub fn kinds(&self) -> impl Iterator<Item = MediaKind> {
        self.preparation.specs().map(|(kind, _)| kind)
    }

    /// Turns media into what the encoder takes.
    #[must_use]
    pub fn preparation(&self) -> MediaPreparation {
        self.preparation.clone()
    }

    /// Counts what happens to the media.
    pub(crate) fn metrics(&self) -> &MediaMetrics {
        &self.metrics
    }

    /// Limits the media that are decoded and wait.
    #[must_use]
    pub fn slots(&self) -> Arc<Semaphore> {
        self.slots.clone()
    }

    /// A media item that was encoded before.
    #[must_use]
    pub fn find(&self, id: &MediaId) -> Option<CachedMedia> {
        self.cache().find(id).inspect(|media| self.metrics.found(media.parts.kind))
    }

    /// Computes the rows of a media item, after those of the media that came before. Dropping the future cancels it.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub async fn encode(&self, id: MediaId, media: PreparedMedia) -> Result<CachedMedia, EncodeError> {
        let _waits = self.metrics.waits();
        let parts = MediaParts { kind: media.kind(), parts: media.parts().into() };
        let width = self.spec(parts.kind).map_or(0, |spec| spec.width);
        let (mut values, expected) = (Vec::new(), media.rows() * width);
        for piece in media.into_pieces() {
            values.extend(self.rows_of(Arc::new(piece)).await?);
        }
        if values.len() != expected || values.iter().any(|value| !value.is_finite()) {
            let reason =
                format!("the encoder gave {} values instead of {expected}, or some that are no numbers", values.len());
            return Err(EncodeError::Failed(reason));
        }
        let encoded = CachedMedia { parts, media: EncodedMedia::new(values.into(), width) };
        let mut cache = self.cache();
        cache.insert(id, encoded.clone());
        self.metrics.cache_holds(cache.bytes());
        Ok(encoded)
    }

    async fn rows_of(&self, media: Arc<PreparedMedia>) -> Result<Vec<f32>, EncodeError> {
        let cancel = CancelOnDrop(LoadCancel::default());
        let mut availability = self.keeper.availability();
        let mut lost = None;
        for _ in 0..ATTEMPTS {
            let encoder = running(&mut availability, lost).await?;
            let (reply, answer) = oneshot::channel();
            let job = EncodeJob { media: media.clone(), cancel: cancel.0.clone(), reply };
            // When the encoder is gone, so is the sender of the answer.
            let _ = encoder.cast(EncoderMsg::Encode(job));
            let id = encoder.get_id();
            tokio::select! {
                biased;
                rows = answer => if let Ok(rows) = rows { return rows },
                // A thread that hangs keeps the sender.
                () = replaced(&mut availability, id) => {}
            }
            lost = Some(id);
        }
        Err(EncodeError::Failed("the encoder was lost over it".to_owned()))
    }

    /// Stops the encoder. Media that wait for it are refused.
    pub(crate) fn stop(&self) {
        self.keeper.stop();
    }

    fn cache(&self) -> MutexGuard<'_, MediaCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for an encoder other than the one that was lost.
async fn running(
    availability: &mut watch::Receiver<Availability>,
    lost: Option<ActorId>,
) -> Result<ActorRef<EncoderMsg>, EncodeError> {
    let is_settled = |now: &Availability| match now {
        Availability::Starting => false,
        Availability::Running(encoder) => lost != Some(encoder.get_id()),
        Availability::Ended(_) => true,
    };
    match availability.wait_for(is_settled).await.map(|now| now.clone()) {
        Ok(Availability::Running(encoder)) => Ok(encoder),
        Ok(Availability::Ended(reason)) => Err(EncodeError::Unavailable(reason)),
        Ok(Availability::Starting) | Err(_) => Err(EncodeError::Unavailable("it is being unloaded".to_owned())),
    }
}

/// Waits until this encoder is not used any more.
async fn replaced(availability: &mut watch::Receiver<Availability>, id: ActorId) {
    let is_other = |now: &Availability| !matches!(now, Availability::Running(encoder) if encoder.get_id() == id);
    // Fails only when the keeper is gone, and the encoder with it.
    let _ = availability.wait_for(is_other).await;
}

/// Tells the encoder that no request waits for the rows.
struct CancelOnDrop(LoadCancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
