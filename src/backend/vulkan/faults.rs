//! Injected device faults, for tests of the layers above. Debug builds only.

use std::sync::{Mutex, PoisonError};

/// A call in which a driver may report a lost device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCall {
    /// `vkQueueSubmit2`: the submitted commands do not run.
    Submit,
    /// `vkWaitSemaphores`: the submitted commands run, but their completion is not reported.
    Wait,
    /// `vkGetSemaphoreCounterValue`: the timeline has its largest value, although a wait reported no error.
    Timeline,
}

static ARMED: Mutex<Option<DeviceCall>> = Mutex::new(None);

impl DeviceCall {
    /// Makes the next such call, on any device, find the device lost.
    pub fn arm(self) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Whether a fault is armed for this call. Disarms it.
    pub(super) fn take_armed(self) -> bool {
        ARMED.lock().unwrap_or_else(PoisonError::into_inner).take_if(|armed| *armed == self).is_some()
    }
}
