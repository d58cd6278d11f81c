//! An open device: its queue, its memory and its pipelines.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ash::vk;

use super::error::VulkanError;
#[cfg(debug_assertions)]
use super::faults::DeviceCall;
use super::instance::{Instance, InstanceOptions};
use super::memory::Memory;
use super::pipeline::Pipelines;
use super::probe::{DeviceInfo, Required};

/// Options of an open device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VulkanOptions {
    /// Folder that keeps compiled pipelines between runs.
    pub pipeline_cache: Option<PathBuf>,
    /// Enable the validation layer.
    pub validation: bool,
    /// Treat device memory as not accessible to the CPU. For tests on devices where it is accessible.
    pub force_staging: bool,
}

impl VulkanOptions {
    /// The options of the instance that such a device needs.
    #[must_use]
    pub fn instance(&self) -> InstanceOptions {
        InstanceOptions { validation: self.validation }
    }
}

/// An open device.
pub struct Device {
    // Resources of the device are dropped before the device (see `Drop`).
    pub(super) pipelines: std::mem::ManuallyDrop<Pipelines>,
    pub(super) memory: std::mem::ManuallyDrop<Memory>,
    pub(super) queue: Queue,
    pub(super) raw: ash::Device,
    pub(super) info: DeviceInfo,
    pub(super) options: VulkanOptions,
    pub(super) instance: Arc<Instance>,
}

/// A queue and the timeline semaphore that counts its submissions.
pub(super) struct Queue {
    raw: vk::Queue,
    pub family: u32,
    timeline: vk::Semaphore,
    submitted: Mutex<u64>,
    /// Set once a call has found the device lost, because a driver may report that only once.
    is_lost: AtomicBool,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`VulkanError::Unsuitable`] when the device lacks a required feature, or the driver's error.
    pub fn open(instance: Arc<Instance>, info: DeviceInfo, options: VulkanOptions) -> Result<Arc<Device>, VulkanError> {
        let (true, Some(family)) = (info.missing.is_empty(), info.queue_family) else {
            return Err(VulkanError::Unsuitable { name: info.name, missing: info.missing });
        };
        let raw = create(&instance, &info, family)?;
        let queue = Queue::new(&raw, family)?;
        let pipelines = Pipelines::new(&raw, &info, options.pipeline_cache.as_deref())?;
        let memory = Memory::new(&instance.raw, &raw, &info)?;
        Ok(Arc::new(Device {
            pipelines: std::mem::ManuallyDrop::new(pipelines),
            memory: std::mem::ManuallyDrop::new(memory),
            queue,
            raw,
            info,
            options,
            instance,
        }))
    }

    /// Its properties.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The instance that it belongs to.
    #[must_use]
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Submits command buffers, which run in their order. Returns the value to pass to [`Device::wait`].
    pub(super) fn submit(&self, commands: &[vk::CommandBuffer]) -> Result<u64, VulkanError> {
        let mut submitted = self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        let value = *submitted + 1;
        let commands: Vec<_> =
            commands.iter().map(|raw| vk::CommandBufferSubmitInfo::default().command_buffer(*raw)).collect();
        let signals = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.queue.timeline)
            .value(value)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let submit = vk::SubmitInfo2::default().command_buffer_infos(&commands).signal_semaphore_infos(&signals);
        #[cfg(debug_assertions)]
        self.inject_fault(DeviceCall::Submit);
        // SAFETY: the lock is held; the buffers are recorded, and their owner waits for the device before it frees them.
        self.unless_lost(|| unsafe { self.raw.queue_submit2(self.queue.raw, &[submit], vk::Fence::null()) })
            .map_err(VulkanError::of("vkQueueSubmit2"))?;
        *submitted = value;
        Ok(value)
    }

    /// Waits until the submission for which [`Device::submit`] returned `value` has completed.
    pub(super) fn wait(&self, value: u64) -> Result<(), VulkanError> {
        // Repeated finite waits: some drivers do not notice a lost device during a wait.
        const SLICE: Duration = Duration::from_secs(1);
        let semaphores = [self.queue.timeline];
        let values = [value];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        #[cfg(debug_assertions)]
        self.inject_fault(DeviceCall::Wait);
        loop {
            // SAFETY: the semaphore belongs to the device.
            match self.unless_lost(|| unsafe { self.raw.wait_semaphores(&info, SLICE.as_nanos() as u64) }) {
                Ok(()) => return self.check_timeline(),
                Err(vk::Result::TIMEOUT) => {}
                Err(result) => return Err(VulkanError::of("vkWaitSemaphores")(result)),
            }
        }
    }

    /// Checks that the timeline has a value of a submission. A driver may set it to its largest value when the device is lost, and
    /// report that waits have succeeded.
    fn check_timeline(&self) -> Result<(), VulkanError> {
        // SAFETY: the semaphore belongs to the device.
        let reached = unsafe { self.raw.get_semaphore_counter_value(self.queue.timeline) };
        let reached = reached.map_err(VulkanError::of("vkGetSemaphoreCounterValue"))?;
        #[cfg(debug_assertions)]
        let reached = if DeviceCall::Timeline.take_armed() { u64::MAX } else { reached };
        if reached <= *self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(());
        }
        self.lose();
        Err(VulkanError::of("vkWaitSemaphores")(vk::Result::ERROR_DEVICE_LOST))
    }

    /// Waits until all submissions have completed.
    pub(super) fn wait_for_all(&self) -> Result<(), VulkanError> {
        let value = *self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait(value)
    }

    /// Waits until the device is idle, so that its resources may be destroyed. Also works for a lost device.
    pub(super) fn settle(&self) {
        let _submitting = self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock keeps other threads from the queue. Nothing runs afterwards, even if the call fails: drivers must
        // return from it, and the work of a lost device counts as completed.
        let _ = unsafe { self.raw.device_wait_idle() };
    }

    /// Makes a call that may find the device lost, unless an earlier call has found that.
    fn unless_lost(&self, call: impl FnOnce() -> ash::prelude::VkResult<()>) -> ash::prelude::VkResult<()> {
        if self.queue.is_lost.load(Ordering::Relaxed) {
            return Err(vk::Result::ERROR_DEVICE_LOST);
        }
        let result = call();
        if result == Err(vk::Result::ERROR_DEVICE_LOST) {
            self.lose();
        }
        result
    }

    /// Marks the device as lost.
    pub(super) fn lose(&self) {
        self.queue.is_lost.store(true, Ordering::Relaxed);
    }

    /// Marks the device as lost if a fault is armed for this call.
    #[cfg(debug_assertions)]
    fn inject_fault(&self, call: DeviceCall) {
        if call.take_armed() {
            self.lose();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every resource holds the device by `Arc`, so none is left, and nothing is used after this. Pipelines, memory
        // and semaphore are destroyed before the device.
        unsafe {
            self.pipelines.destroy(&self.raw);
            std::mem::ManuallyDrop::drop(&mut self.pipelines);
            std::mem::ManuallyDrop::drop(&mut self.memory);
            self.raw.destroy_semaphore(self.queue.timeline, None);
            self.raw.destroy_device(None);
        }
    }
}

fn create(instance: &Instance, info: &DeviceInfo, family: u32) -> Result<ash::Device, VulkanError> {
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)];
    let mut extensions = Vec::new();
    if info.extensions.memory_budget {
        extensions.push(ash::ext::memory_budget::NAME.as_ptr());
    }
    if info.extensions.portability_subset {
        extensions.push(ash::khr::portability_subset::NAME.as_ptr());
    }
    let Required { core, mut v11, mut v12, mut v13 } = Required::new();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    if info.extensions.cooperative_matrix {
        extensions.push(ash::khr::cooperative_matrix::NAME.as_ptr());
        // Other shaders use atomics with device scope, which this memory model must be told to support.
        v12 = v12.shader_float16(true).vulkan_memory_model(true).vulkan_memory_model_device_scope(true);
        v13 = v13.subgroup_size_control(true).compute_full_subgroups(true);
    }
    let mut create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .enabled_features(&core)
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13);
    if info.extensions.cooperative_matrix {
        create = create.push_next(&mut matrices);
    }
    // SAFETY: the device belongs to the instance; everything that `create` points to outlives the call.
    unsafe { instance.raw.create_device(info.raw, &create, None) }.map_err(VulkanError::of("vkCreateDevice"))
}

impl Queue {
    fn new(device: &ash::Device, family: u32) -> Result<Self, VulkanError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive and has this queue.
        unsafe {
            let timeline = device.create_semaphore(&info, None).map_err(VulkanError::of("vkCreateSemaphore"))?;
            let raw = device.get_device_queue(family, 0);
            Ok(Queue { raw, family, timeline, submitted: Mutex::new(0), is_lost: AtomicBool::new(false) })
        }
    }
}
