//! Where a model of the registry comes from, whatever its engine: first its plan, then a cast that runs it.
//!
//! A model's memory is taken when its engine is made and free when its engine is dropped, and nowhere else: so each
//! engine carries a [`Lease`], and the broker counts those instead of believing what others say of a model. That holds
//! after a panic too, and for an engine whose thread outlives its cast.

use cuelight_engine::engine::{Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepId};
use cuelight_engine::load::{LoadProgress, LoadedModel, MemoryPlan};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::executor::EngineHost;
use crate::loader::ModelSource;
use crate::runtime::{Runtime, RuntimeOptions, StartError};

/// A model that can be planned and started any number of times.
pub trait ModelFactory: Send + Sync + 'static {
    /// Looks at the model and plans its memory within `limit` bytes, or within what is free. Allocates nothing of its
    /// size. Blocks.
    ///
    /// # Errors
    /// [`PlanError`].
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError>;
}

/// Why a model cannot be loaded, known before it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It does not fit, even with the machine for itself: the sizes, and what would help.
    #[error("{0}")]
    TooLarge(String),
    /// It is no model that can run here: which file, and why.
    #[error("{0}")]
    Unusable(String),
}

type Started = BoxFuture<'static, Result<Runtime, StartError>>;
type Start = Box<dyn FnOnce(RuntimeOptions, LiveEngines) -> Started + Send + Sync>;

/// A model that was looked at: what it takes, all replicas together, and how to start it.
pub struct PlannedModel {
    memory: MemoryPlan,
    start: Start,
}

impl PlannedModel {
    /// A model that takes `memory` and comes from `source`.
    #[must_use]
    pub fn new<S: ModelSource>(memory: MemoryPlan, source: S) -> Self {
        Self::replicated(memory, vec![source])
    }

    /// A model of so many replicas, which take `memory` together; each comes from a source of its own.
    #[must_use]
    pub fn replicated<S: ModelSource>(memory: MemoryPlan, sources: Vec<S>) -> Self {
        let start: Start = Box::new(move |options, live| {
            let leased = |source| Leased { source, live: live.clone() };
            Runtime::start_replicas(sources.into_iter().map(leased).collect(), options).boxed()
        });
        PlannedModel { memory, start }
    }

    /// What it takes.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Starts a cast that loads it. Its engines are counted in `live`.
    pub(super) async fn start(self, options: RuntimeOptions, live: LiveEngines) -> Result<Runtime, StartError> {
        (self.start)(options, live).await
    }
}

/// Counts a model's engines that are being made, or exist.
#[derive(Clone)]
pub(super) struct LiveEngines(watch::Sender<usize>);

impl LiveEngines {
    pub fn new() -> Self {
        LiveEngines(watch::Sender::new(0))
    }

    /// Resolves once there are none, and the memory that they had is free.
    pub async fn gone(&self) {
        // Without an error: the sender is in `self`.
        let _ = self.0.subscribe().wait_for(|&live| live == 0).await;
    }

    fn lease(&self) -> Lease {
        self.0.send_modify(|live| *live += 1);
        Lease(self.clone())
    }
}

/// An engine's claim on memory, until dropped.
struct Lease(LiveEngines);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.0.send_modify(|live| *live -= 1);
    }
}

/// A source whose engines are counted.
struct Leased<S> {
    source: S,
    live: LiveEngines,
}

impl<S: ModelSource> ModelSource for Leased<S> {
    type Engine = LeasedEngine<S::Engine>;

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Self::Engine>, String> {
        let lease = self.live.lease();
        let mut loaded = self.source.load(progress)?.map_engine(|engine| LeasedEngine { engine, _lease: lease });
        // Its experts may outlive the engine by a moment.
        loaded.experts = loaded.experts.map(|experts| experts.guarded_by(self.live.lease()));
        Ok(loaded)
    }

    fn host(&self) -> EngineHost {
        self.source.host()
    }
}

/// An engine that is counted.
struct LeasedEngine<E> {
    engine: E,
    /// Dropped after the engine: fields go in their order.
    _lease: Lease,
}

impl<E: Engine> Engine for LeasedEngine<E> {
    fn limits(&self) -> &EngineLimits {
        self.engine.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        self.engine.begin(step)
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.engine.work_beside(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        self.engine.resume(result)
    }
}
