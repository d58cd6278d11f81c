//! Plans the memory of a model and starts its pipelines, independent of the engine type.
//!
//! The memory of a model is allocated when its engine is created and free when the engine is dropped. So each engine holds
//! an [`EngineToken`], and the broker counts these tokens. The count is right also after a panic, and for an engine whose
//! thread outlives its pipeline.

use std::sync::Arc;

use cuelight_engine::engine::{Engine, EngineError, WrapsEngine};
use cuelight_engine::load::{LoadCancel, LoadProgress, LoadedModel, MemoryPlan};
use cuelight_engine::projector::{MediaEncoder, MediaPreparation, PreparedMedia};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::pipeline::adapters::Adapters;
use crate::pipeline::model_source::{DraftModel, EngineHost, MediaModel, ModelSource, SourceError};
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::runtime::{Runtime, StartError};

/// Plans and starts a model, any number of times.
pub trait ModelFactory: Send + Sync + 'static {
    /// Reads the header of the model and plans its memory within `limit` bytes, or within the free memory. Does not
    /// allocate the memory of the model. Blocks.
    ///
    /// # Errors
    /// [`PlanError`] when the model does not fit or cannot run.
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError>;
}

/// Why a model cannot be loaded, known before loading it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It does not fit, even if it were the only model. The text has the sizes and what would help.
    #[error("{0}")]
    TooLarge(String),
    /// It cannot run here. The text names the file and the reason.
    #[error("{0}")]
    Unusable(String),
}

type Started = BoxFuture<'static, Result<Runtime, StartError>>;
type Start = Box<dyn FnOnce(RuntimeOptions, LiveEngines) -> Started + Send + Sync>;

/// A planned model: the memory of all of its replicas together, and how to start it.
pub struct PlannedModel {
    memory: MemoryPlan,
    start: Start,
}

impl PlannedModel {
    /// A model that uses `memory` and is loaded from `source`.
    #[must_use]
    pub fn new<S: ModelSource>(memory: MemoryPlan, source: S) -> Self {
        Self::replicated(memory, vec![source])
    }

    /// A model with one replica per source. `memory` is the memory of all of them together.
    #[must_use]
    pub fn replicated<S: ModelSource>(memory: MemoryPlan, sources: Vec<S>) -> Self {
        let start: Start = Box::new(move |options, live| {
            let counted = |source| CountedSource { source, live: live.clone() };
            Runtime::start_replicas(sources.into_iter().map(counted).collect(), options).boxed()
        });
        PlannedModel { memory, start }
    }

    /// The memory of all replicas together.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Starts pipelines that load the model. Their engines are counted in `live`.
    pub(super) async fn start(self, options: RuntimeOptions, live: LiveEngines) -> Result<Runtime, StartError> {
        (self.start)(options, live).await
    }
}

/// Counts the engines of a model that exist or are being created.
#[derive(Clone)]
pub(super) struct LiveEngines(watch::Sender<usize>);

impl LiveEngines {
    pub fn new() -> Self {
        LiveEngines(watch::Sender::new(0))
    }

    /// Waits until there are none and their memory is free.
    pub async fn gone(&self) {
        // Cannot fail, because the sender is in `self`.
        let _ = self.0.subscribe().wait_for(|&live| live == 0).await;
    }

    fn token(&self) -> EngineToken {
        self.0.send_modify(|live| *live += 1);
        EngineToken(self.clone())
    }
}

/// Counts one engine until dropped.
struct EngineToken(LiveEngines);

impl Drop for EngineToken {
    fn drop(&mut self) {
        self.0.0.send_modify(|live| *live -= 1);
    }
}

/// A source whose engines are counted.
struct CountedSource<S> {
    source: S,
    live: LiveEngines,
}

impl<S: ModelSource> ModelSource for CountedSource<S> {
    type Engine = CountedEngine<S::Engine>;

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Self::Engine>, SourceError> {
        let token = self.live.token();
        let mut loaded =
            self.source.load(cancel, progress)?.map_engine(|engine| CountedEngine { engine, _token: token });
        // The experts may outlive the engine for a short time.
        loaded.experts = loaded.experts.map(|experts| experts.guarded_by(self.live.token()));
        Ok(loaded)
    }

    fn adapters(&self) -> Option<Arc<Adapters>> {
        self.source.adapters()
    }

    fn draft_model(&self) -> Option<Arc<dyn DraftModel>> {
        let model = self.source.draft_model()?;
        Some(Arc::new(CountedDraftModel { model, live: self.live.clone() }))
    }

    fn media_model(&self) -> Option<Arc<dyn MediaModel>> {
        let model = self.source.media_model()?;
        Some(Arc::new(CountedMediaModel { model, live: self.live.clone() }))
    }

    fn content(&self) -> Option<String> {
        self.source.content()
    }

    fn host(&self) -> EngineHost {
        self.source.host()
    }
}

/// A draft model whose engines are counted.
struct CountedDraftModel {
    model: Arc<dyn DraftModel>,
    live: LiveEngines,
}

impl DraftModel for CountedDraftModel {
    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn Engine>, SourceError> {
        let token = self.live.token();
        Ok(Box::new(CountedEngine { engine: self.model.load(cancel)?, _token: token }))
    }
}

/// A model of media whose encoders are counted.
struct CountedMediaModel {
    model: Arc<dyn MediaModel>,
    live: LiveEngines,
}

impl MediaModel for CountedMediaModel {
    fn preparation(&self) -> MediaPreparation {
        self.model.preparation()
    }

    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn MediaEncoder>, SourceError> {
        let token = self.live.token();
        Ok(Box::new(CountedEncoder { encoder: self.model.load(cancel)?, _token: token }))
    }
}

/// A counted encoder.
struct CountedEncoder {
    encoder: Box<dyn MediaEncoder>,
    /// Dropped after the encoder.
    _token: EngineToken,
}

impl MediaEncoder for CountedEncoder {
    fn encode(&mut self, media: &PreparedMedia, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        self.encoder.encode(media, cancel)
    }
}

/// A counted engine.
struct CountedEngine<E> {
    engine: E,
    /// Dropped after the engine, because fields are dropped in declaration order.
    _token: EngineToken,
}

impl<E: Engine> WrapsEngine for CountedEngine<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}
