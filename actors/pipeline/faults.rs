//! Injected faults, for tests of a whole server. Debug builds only.
//!
//! `POST /debug/fault` with `{"kind": "panic"}`, `"device_lost"` or `"hang"` arms one fault, which the next step of any engine
//! triggers. `"experts"` and `"experts_hang"` are triggered by the next expert job on the host: the first kills the experts actor,
//! the second lets its thread hang. `"sampler"`, `"scheduler"` and `"loader"` make these actors panic: the sampler between two
//! requests of a step, the scheduler between a decision and its effects, the loader when it is to load. `"lost_at_submit"` and
//! `"lost_at_wait"` make the GPU driver report a lost device at the next submission or wait, and `"lost_at_timeline"` makes it
//! report success with a timeline at its largest value.

use std::sync::Mutex;
use std::time::Duration;

use cuelight_engine::backend::vulkan::faults::DeviceCall;
use cuelight_engine::engine::{Engine, EngineError, Progress, Step, WrapsEngine};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The engine panics.
    Panic,
    /// The engine reports that its device is lost.
    DeviceLost,
    /// The GPU driver reports a lost device in this call.
    LostAt(DeviceCall),
    /// The step takes longer than the step timeout.
    Hang,
    /// The experts actor dies at the next job.
    Experts,
    /// The experts' thread hangs in the next job.
    ExpertsHang,
    /// The sampler panics after it has delivered a token.
    Sampler,
    /// The scheduler panics after it has taken a decision.
    Scheduler,
    /// The loader panics when it is to load.
    Loader,
}

/// Longer than the step timeout of the tests, short enough for the thread to end with the test.
const HANG: Duration = Duration::from_secs(120);

static ARMED: Mutex<Option<Fault>> = Mutex::new(None);

impl Fault {
    /// The fault with this name.
    #[must_use]
    pub fn named(kind: &str) -> Option<Self> {
        match kind {
            "panic" => Some(Fault::Panic),
            "device_lost" => Some(Fault::DeviceLost),
            "lost_at_submit" => Some(Fault::LostAt(DeviceCall::Submit)),
            "lost_at_wait" => Some(Fault::LostAt(DeviceCall::Wait)),
            "lost_at_timeline" => Some(Fault::LostAt(DeviceCall::Timeline)),
            "hang" => Some(Fault::Hang),
            "experts" => Some(Fault::Experts),
            "experts_hang" => Some(Fault::ExpertsHang),
            "sampler" => Some(Fault::Sampler),
            "scheduler" => Some(Fault::Scheduler),
            "loader" => Some(Fault::Loader),
            _ => None,
        }
    }

    /// Arms the fault.
    pub fn arm(self) {
        if let Fault::LostAt(call) = self {
            return call.arm();
        }
        *ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(self);
    }

    /// Takes back a fault that nothing has triggered.
    pub fn disarm() {
        Fault::take(|_| true);
    }

    /// Whether an engine triggers it.
    fn is_of_engine(self) -> bool {
        matches!(self, Fault::Panic | Fault::DeviceLost | Fault::Hang)
    }

    /// Panics if this fault is armed.
    pub fn panic_if_armed(self) {
        assert!(Fault::take(|fault| fault == self).is_none(), "injected");
    }

    /// Takes the armed fault, if `is_wanted` accepts it.
    fn take(is_wanted: impl Fn(Fault) -> bool) -> Option<Self> {
        ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take_if(|fault| is_wanted(*fault))
    }
}

/// Triggers a fault of the experts, if armed. Called on their thread.
///
/// # Errors
/// [`InjectedFault`] when the experts actor has to die.
pub fn trigger_experts_fault() -> Result<(), InjectedFault> {
    match Fault::take(|fault| matches!(fault, Fault::Experts | Fault::ExpertsHang)) {
        Some(Fault::ExpertsHang) => std::thread::sleep(HANG),
        Some(_) => return Err(InjectedFault),
        None => {}
    }
    Ok(())
}

/// The error of an injected fault.
#[derive(Debug, thiserror::Error)]
#[error("injected")]
pub struct InjectedFault;

/// An engine that triggers armed faults.
pub struct Faulty<E>(pub E);

impl<E: Engine> WrapsEngine for Faulty<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.0
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        match Fault::take(Fault::is_of_engine) {
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::DeviceLost) => return Err(EngineError::DeviceLost("injected".into())),
            Some(Fault::Hang) => std::thread::sleep(HANG),
            Some(_) | None => {}
        }
        self.0.begin(step)
    }
}
