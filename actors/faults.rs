//! Faults on demand, for tests of a whole server; built only with the feature `fault-injection`.
//!
//! `POST /debug/fault` with `{"kind": "panic"}`, `"device_lost"` or `"hang"` arms one fault, and the next step of any
//! engine meets it.

use std::sync::Mutex;
use std::time::Duration;

use cuelight_engine::engine::{Engine, EngineError, EngineLimits, ExpertResult, Progress, Step};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The engine panics.
    Panic,
    /// The device is lost.
    DeviceLost,
    /// The step takes longer than any watchdog waits.
    Hang,
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
            "hang" => Some(Fault::Hang),
            _ => None,
        }
    }

    /// Strikes with the next step.
    pub fn arm(self) {
        *ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(self);
    }

    fn take() -> Option<Self> {
        ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// An engine that meets the faults that are armed.
pub struct Faulty<E>(pub E);

impl<E: Engine> Engine for Faulty<E> {
    fn limits(&self) -> &EngineLimits {
        self.0.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        match Fault::take() {
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::DeviceLost) => return Err(EngineError::DeviceLost("injected".into())),
            Some(Fault::Hang) => std::thread::sleep(HANG),
            None => {}
        }
        self.0.begin(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        self.0.resume(result)
    }
}
