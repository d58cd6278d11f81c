//! Faults on demand of a device, for tests of everything above it; built only with the feature `fault-injection`.

use std::sync::{Mutex, PoisonError};

/// A call in which a driver may find that its device is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCall {
    /// `vkQueueSubmit2`: nothing of what is handed over runs.
    Submit,
    /// `vkWaitSemaphores`: what was handed over runs, or ran, and nobody hears of it.
    Wait,
}

static ARMED: Mutex<Option<DeviceCall>> = Mutex::new(None);

impl DeviceCall {
    /// The next such call, to whatever device, answers `VK_ERROR_DEVICE_LOST` and does nothing.
    pub fn arm(self) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Whether this is the call that was armed, which then is armed no more.
    pub(super) fn is_struck(self) -> bool {
        ARMED.lock().unwrap_or_else(PoisonError::into_inner).take_if(|armed| *armed == self).is_some()
    }
}
