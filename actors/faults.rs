//! Faults on demand, for tests of a whole server; built only with the feature `fault-injection`.
//!
//! `POST /debug/fault` with `{"kind": "panic"}`, `"device_lost"` or `"hang"` arms one fault, and the next step of any
//! engine meets it; `"experts"` waits for the next job of experts on the host, and takes their actor down. `"lost_at_submit"`
//! and `"lost_at_wait"` make a GPU's driver say that the device is lost, when it is given work or waited for.

use std::sync::Mutex;
use std::time::Duration;

use cuelight_engine::backend::vulkan::faults::DeviceCall;
use cuelight_engine::engine::{Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepId};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The engine panics.
    Panic,
    /// The engine says that its device is lost.
    DeviceLost,
    /// The driver of a GPU says so, in answer to this call.
    LostAt(DeviceCall),
    /// The step takes longer than any watchdog waits.
    Hang,
    /// The Experts actor dies of the next job.
    Experts,
}

/// Long for a watchdog, short enough for the thread to end with its test.
const HANG: Duration = Duration::from_secs(120);

static ARMED: Mutex<Option<Fault>> = Mutex::new(None);

impl Fault {
    /// The fault of this name.
    #[must_use]
    pub fn named(kind: &str) -> Option<Self> {
        match kind {
            "panic" => Some(Fault::Panic),
            "device_lost" => Some(Fault::DeviceLost),
            "lost_at_submit" => Some(Fault::LostAt(DeviceCall::Submit)),
            "lost_at_wait" => Some(Fault::LostAt(DeviceCall::Wait)),
            "hang" => Some(Fault::Hang),
            "experts" => Some(Fault::Experts),
            _ => None,
        }
    }

    /// Strikes with the next step.
    pub fn arm(self) {
        if let Fault::LostAt(call) = self {
            return call.arm();
        }
        *ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(self);
    }

    /// Takes the armed fault, if it is one of these.
    fn take(is_wanted: impl Fn(Fault) -> bool) -> Option<Self> {
        ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take_if(|fault| is_wanted(*fault))
    }
}

/// Fails when the fault of experts is armed.
///
/// # Errors
/// [`InjectedFault`], of which the Experts actor is to die.
pub fn strike_experts() -> Result<(), InjectedFault> {
    Fault::take(|fault| fault == Fault::Experts).map_or(Ok(()), |_| Err(InjectedFault))
}

/// What an actor dies of when a test says so.
#[derive(Debug, thiserror::Error)]
#[error("injected")]
pub struct InjectedFault;

/// An engine that meets the faults that are armed.
pub struct Faulty<E>(pub E);

impl<E: Engine> Engine for Faulty<E> {
    fn limits(&self) -> &EngineLimits {
        self.0.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        match Fault::take(|fault| fault != Fault::Experts) {
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::DeviceLost) => return Err(EngineError::DeviceLost("injected".into())),
            Some(Fault::Hang) => std::thread::sleep(HANG),
            Some(Fault::Experts | Fault::LostAt(_)) | None => {}
        }
        self.0.begin(step)
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.0.work_beside(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        self.0.resume(result)
    }
}
