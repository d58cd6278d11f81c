//! An executor with an engine that records what it is called for.
#![allow(clippy::unwrap_used)]

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use cuelight_engine::engine::{
    CacheUnit, EngineError, EngineLimits, ExpertJob, ExpertResult, Progress, SequenceRows, Step,
};
use cuelight_engine::experts::HostExperts;
use cuelight_engine::load::Kernel;
use ractor::Message;

use super::*;
use crate::pipeline::simulation::{SimulatedModel, tokenizer};

#[test]
fn the_next_step_has_its_tokens_when_the_engine_sampled_all_of_them() {
    let task = |id, samples| SampleTask {
        id: RequestId(id),
        rows: 1,
        first_position: 0,
        scores_prompt: false,
        hidden_rows: 0,
        samples,
        draft: None,
        canvas: None,
    };
    let tasks = [task(1, true), task(2, true), task(3, false)];
    let [some, faulty] = [Some(SampledToken::Token(9)), Some(SampledToken::NotFinite(4))];
    assert_eq!(sampled_tokens(&tasks, &[some, some, None]), Some(vec![(RequestId(1), 9), (RequestId(2), 9)]));
    assert_eq!(sampled_tokens(&tasks, &[faulty, some, None]), Some(vec![(RequestId(2), 9)]), "one has failed");
    assert_eq!(sampled_tokens(&tasks, &[some, None, None]), None, "one token has to be sampled from logits");
    assert_eq!(sampled_tokens(&tasks, &[]), None, "the engine does not sample");
}

/// The calls of an engine.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    fn add(&self, call: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// The first calls, once there are this many.
    async fn first(&self, count: usize) -> Vec<&'static str> {
        for _ in 0..1000 {
            let calls = self.0.lock().unwrap().clone();
            if calls.len() >= count {
                return calls;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}", self.0.lock().unwrap())
    }
}

/// An engine whose steps wait for experts.
struct WaitingEngine {
    limits: EngineLimits,
    waiting: Option<StepId>,
    calls: Calls,
}

impl Engine for WaitingEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        self.calls.add("begin");
        self.waiting = Some(step.id);
        Ok(Progress::AwaitExperts(ExpertJob { step: step.id, layer: 0, hidden: vec![], routes: vec![], n_routes: 0 }))
    }

    fn resume(&mut self, _: ExpertResult) -> Result<Progress, EngineError> {
        self.calls.add("resume");
        Ok(Progress::Done(StepOutput::empty(self.waiting.take().unwrap())))
    }

    fn write_units(&mut self, _: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        self.calls.add("write");
        Ok(())
    }
}

/// Receives messages and does nothing.
struct Sink<M>(PhantomData<fn(M)>);

impl<M: Message> Actor for Sink<M> {
    type Msg = M;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<M>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

async fn sink<M: Message>() -> ActorRef<M> {
    Actor::spawn(None, Sink(PhantomData), ()).await.unwrap().0
}

async fn executor(calls: &Calls) -> ActorRef<ExecutorMsg> {
    let limits = SimulatedModel::new(tokenizer()).limits;
    // No worker takes their jobs. Without experts a job would fail at once.
    let expert_jobs = ExpertJobQueue::default();
    let experts = HostExperts::new(Vec::new(), Kernel::detect(), 1, 1, &mut |_, _| Ok(())).unwrap();
    expert_jobs.set_experts(Some(Arc::new(Mutex::new(experts))));
    let arguments = ExecutorArguments {
        model_id: "model".into(),
        engine: WaitingEngine { limits, waiting: None, calls: calls.clone() },
        host: EngineHost::VirtualTime,
        step_timeout: Duration::from_secs(60),
        sampler: sink().await,
        scheduler: sink().await,
        expert_jobs,
        kv_store: None,
        overlap: OverlapMode::Off,
        tracer: Tracer::default(),
    };
    Actor::spawn(None, Executor::default(), arguments).await.unwrap().0
}

fn step(id: u64) -> ExecutorMsg {
    let rows = SequenceRows { tokens: vec![1], block_table: vec![0], ..SequenceRows::default() };
    let step = Step { id: StepId(id), sequences: vec![rows] };
    ExecutorMsg::Run(PlannedStep { step, ids: vec![RequestId(id)], tasks: Vec::new(), awaits: Vec::new() })
}

#[tokio::test]
async fn blocks_are_written_after_the_step_of_a_scheduler_that_was_replaced() {
    let calls = Calls::default();
    let executor = executor(&calls).await;
    let experts = || ExecutorMsg::Experts(Ok(ExpertResult { step: StepId(1), layer: 0, output: Vec::new() }));
    executor.cast(step(1)).unwrap();
    executor.cast(ExecutorMsg::Connect { sampler: sink().await, scheduler: sink().await }).unwrap();
    executor.cast(ExecutorMsg::Write(Vec::new())).unwrap();
    executor.cast(step(2)).unwrap();
    executor.cast(experts()).unwrap();
    assert_eq!(calls.first(4).await, ["begin", "resume", "write", "begin"]);
    // The step of the present scheduler uses other blocks.
    executor.cast(ExecutorMsg::Write(Vec::new())).unwrap();
    executor.cast(experts()).unwrap();
    assert_eq!(calls.first(6).await[4..], ["write", "resume"]);
    executor.stop(None);
}
