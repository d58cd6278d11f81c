//! A device in use: its queue, its memory, its pipelines.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ash::vk;

use super::error::VulkanError;
#[cfg(feature = "fault-injection")]
use super::faults::DeviceCall;
use super::instance::{Instance, InstanceOptions};
use super::memory::Memory;
use super::pipeline::Pipelines;
use super::probe::{DeviceInfo, Required};
use crate::memory;

/// How a device is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VulkanOptions {
    /// Folder where compiled pipelines are kept between runs.
    pub pipeline_cache: Option<PathBuf>,
    /// Have the validation layer look on.
    pub validation: bool,
    /// Treat the device's memory as out of the processor's reach, as that of a card: for tests on devices where it is not.
    pub force_staging: bool,
}

impl VulkanOptions {
    /// How the loader is started.
    #[must_use]
    pub fn instance(&self) -> InstanceOptions {
        InstanceOptions { validation: self.validation }
    }
}

/// An open device.
pub struct Device {
    // Fields are dropped in their order: what lives on the device before the device (see `Drop`).
    pub(super) pipelines: std::mem::ManuallyDrop<Pipelines>,
    pub(super) memory: std::mem::ManuallyDrop<Memory>,
    pub(super) queue: Queue,
    pub(super) raw: ash::Device,
    pub(super) info: DeviceInfo,
    pub(super) options: VulkanOptions,
    pub(super) instance: Arc<Instance>,
}

/// A queue and the timeline that counts its submissions.
pub(super) struct Queue {
    raw: vk::Queue,
    pub family: u32,
    timeline: vk::Semaphore,
    submitted: Mutex<u64>,
    /// Once a call has found the device lost, it is for all: a driver may say so only once.
    is_lost: AtomicBool,
}

impl Device {
    /// Opens a device of the loader.
    ///
    /// # Errors
    /// [`VulkanError`] when it lacks something.
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

    /// What it is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The loader that it belongs to.
    #[must_use]
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Hands command buffers to the device, to run in their order; returns what to wait for.
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
        #[cfg(feature = "fault-injection")]
        self.strike(DeviceCall::Submit);
        // SAFETY: the queue is used under the lock; the buffers are recorded and their owner waits before it frees them.
        self.unless_lost(|| unsafe { self.raw.queue_submit2(self.queue.raw, &[submit], vk::Fence::null()) })
            .map_err(VulkanError::of("vkQueueSubmit2"))?;
        *submitted = value;
        Ok(value)
    }

    /// Waits until the device has done what [`Device::submit`] returned this for.
    pub(super) fn wait(&self, value: u64) -> Result<(), VulkanError> {
        // A finite wait, again and again: some drivers do not notice a lost device inside one.
        const SLICE: Duration = Duration::from_secs(1);
        let semaphores = [self.queue.timeline];
        let values = [value];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        #[cfg(feature = "fault-injection")]
        self.strike(DeviceCall::Wait);
        loop {
            // SAFETY: the semaphore is the device's.
            match self.unless_lost(|| unsafe { self.raw.wait_semaphores(&info, SLICE.as_nanos() as u64) }) {
                Ok(()) => return Ok(()),
                Err(vk::Result::TIMEOUT) => {}
                Err(result) => return Err(VulkanError::of("vkWaitSemaphores")(result)),
            }
        }
    }

    /// Waits for everything that was submitted.
    pub(super) fn wait_for_all(&self) -> Result<(), VulkanError> {
        let value = *self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait(value)
    }

    /// Returns when the device uses nothing any more, so that what lives on it may be destroyed: also one that is lost.
    pub(super) fn settle(&self) {
        let _submitting = self.queue.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody else uses the queue, which is under the lock. Whatever comes of it, nothing runs afterwards: drivers
        // must return from this call, and what a device ran when it was lost counts as done.
        let _ = unsafe { self.raw.device_wait_idle() };
    }

    /// Makes a call that may find the device lost, unless one has before.
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

    /// Takes the device for lost from now on.
    pub(super) fn lose(&self) {
        self.queue.is_lost.store(true, Ordering::Relaxed);
    }

    /// Loses the device if this call is armed to.
    #[cfg(feature = "fault-injection")]
    fn strike(&self, call: DeviceCall) {
        if call.is_struck() {
            self.lose();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything on the device holds it by `Arc` and is gone; nothing is used after this. The parts go before
        // the device that they are of.
        unsafe {
            self.pipelines.destroy(&self.raw);
            std::mem::ManuallyDrop::drop(&mut self.pipelines);
            std::mem::ManuallyDrop::drop(&mut self.memory);
            self.raw.destroy_semaphore(self.queue.timeline, None);
            self.raw.destroy_device(None);
        }
    }
}

impl DeviceInfo {
    /// The device of that number.
    ///
    /// # Errors
    /// [`VulkanError::NoSuchDevice`], or what the loader says.
    pub fn find(instance: &Instance, index: usize) -> Result<DeviceInfo, VulkanError> {
        let mut devices = instance.devices()?;
        if index >= devices.len() {
            return Err(if devices.is_empty() {
                VulkanError::NoDriver
            } else {
                VulkanError::NoSuchDevice { index, count: devices.len() }
            });
        }
        Ok(devices.swap_remove(index))
    }

    /// Memory that a model may be planned into: what the driver says is left of the largest heap, and no more than the
    /// machine has where the device is its processor.
    #[must_use]
    pub fn available_bytes(&self, instance: &Instance) -> u64 {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
        if self.extensions.memory_budget {
            properties = properties.push_next(&mut budget);
        }
        // SAFETY: the device is one of the instance; the chain lives until the call returns.
        unsafe { instance.raw.get_physical_device_memory_properties2(self.raw, &mut properties) };
        let count = properties.memory_properties.memory_heap_count as usize;
        let heaps = properties.memory_properties.memory_heaps;
        let local = |heap: usize| heaps[heap].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let left = |heap: usize| match self.extensions.memory_budget {
            true => budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]),
            false => heaps[heap].size,
        };
        let available = (0..count).filter(|heap| local(*heap)).map(left).max().unwrap_or(0);
        if self.is_processor() { memory::available().map_or(available, |free| free.min(available)) } else { available }
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
        // Atomic operations of other shaders have the scope of the device where nothing else is said.
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
    // SAFETY: the device is one of the instance; everything `create` points at lives until the call returns.
    unsafe { instance.raw.create_device(info.raw, &create, None) }.map_err(VulkanError::of("vkCreateDevice"))
}

impl Queue {
    fn new(device: &ash::Device, family: u32) -> Result<Self, VulkanError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive, and has this queue.
        unsafe {
            let timeline = device.create_semaphore(&info, None).map_err(VulkanError::of("vkCreateSemaphore"))?;
            let raw = device.get_device_queue(family, 0);
            Ok(Queue { raw, family, timeline, submitted: Mutex::new(0), is_lost: AtomicBool::new(false) })
        }
    }
}
