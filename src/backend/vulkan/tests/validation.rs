//! Checks that the validation layer reports errors, so that its silence is meaningful.
//!
//! The layer checks every call and the order of copies and fills. It does not see memory that shaders access by address: with
//! Debian's layer 1.3.239, dispatches that write the same bytes without a barrier are not reported. Therefore `one_op` checks
//! the regions that dispatches declare, and the tests of `record` compare the recorder's barriers with a model of memory.

use std::sync::Arc;

use ash::vk;
use cuelight_shaders::{attention, rms_norm};

use super::one_op::OneOp;
use super::{assert_clean, own_device, skip};
use crate::backend::vulkan::buffer::Buffer;
use crate::backend::vulkan::memory::MemoryKind;
use crate::backend::vulkan::record::{CommandPool, Recorder};
use crate::backend::vulkan::{Device, VulkanError, VulkanOptions};

/// A separate device with the validation layer, so that its messages do not affect other tests.
fn validated_device() -> Option<Arc<Device>> {
    let device = own_device(VulkanOptions { validation: true, ..VulkanOptions::default() })?;
    if device.instance().is_validated() {
        return Some(device);
    }
    skip("the Vulkan validation layer is not installed");
    None
}

fn record_by_hand(device: &Arc<Device>, pool: &CommandPool, record: impl FnOnce(vk::CommandBuffer)) {
    let commands = pool.allocate().unwrap();
    // SAFETY: the buffer is new, and the device is alive.
    unsafe {
        device.raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()).unwrap();
        record(commands);
        device.raw.end_command_buffer(commands).unwrap();
    }
    device.wait(device.submit(&[commands]).unwrap()).unwrap();
}

#[test]
fn the_layer_reports_two_writes_without_a_barrier() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, MemoryKind::Device).unwrap();
    record_by_hand(&device, &pool, |commands| {
        for value in [1, 2] {
            // SAFETY: recording; the order of the two fills is undefined, which the layer must report.
            unsafe { device.raw.cmd_fill_buffer(commands, buffer.raw, 0, vk::WHOLE_SIZE, value) };
        }
    });
    let messages = device.instance().messages();
    assert!(messages.iter().any(|message| message.contains("WRITE_AFTER_WRITE")), "it reports only {messages:?}");
}

#[test]
fn the_layer_accepts_the_barriers_of_the_recorder() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, MemoryKind::Device).unwrap();
    let mut recorder = Recorder::begin(&device, pool.allocate().unwrap()).unwrap();
    recorder.clear(&buffer);
    recorder.clear(&buffer);
    recorder.copy((&buffer, 0), (&buffer, 512), 512);
    recorder.clear(&buffer);
    device.wait(device.submit(&[recorder.end().unwrap()]).unwrap()).unwrap();
    assert_clean(&device);
}

#[test]
fn the_layer_reports_a_copy_beyond_the_end() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, MemoryKind::Device).unwrap();
    let commands = pool.allocate().unwrap();
    let copy = vk::BufferCopy::default().dst_offset(512).size(1024);
    // SAFETY: recorded for the layer to check; never submitted.
    unsafe {
        device.raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()).unwrap();
        device.raw.cmd_copy_buffer(commands, buffer.raw, buffer.raw, &[copy]);
    }
    assert!(!device.instance().messages().is_empty());
}

#[test]
fn a_dropped_device_has_no_resources_left() {
    let Some(device) = validated_device() else { return };
    let instance = Arc::clone(device.instance());
    for case in [rms_norm::cases(), attention::cases()].iter().flat_map(|cases| cases.first()) {
        let op = OneOp::new(&device, &*case.op, case.cache.as_ref()).unwrap();
        let step = &case.steps[0];
        op.run(&step.batch, step.rows, &step.inputs).unwrap();
    }
    assert_eq!(Arc::strong_count(&device), 1, "a resource of the device is left");
    // The layer reports every resource that is left when the device is destroyed.
    drop(device);
    assert_eq!(instance.messages(), Vec::<String>::new());
}

#[test]
fn a_lost_device_stays_lost_and_its_running_commands_are_awaited() {
    let Some(device) = validated_device() else { return };
    let instance = Arc::clone(device.instance());
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 64 << 20, MemoryKind::Device).unwrap();
    let mut recorder = Recorder::begin(&device, pool.allocate().unwrap()).unwrap();
    for _ in 0..20 {
        recorder.clear(&buffer);
    }
    let commands = recorder.end().unwrap();
    let submitted = device.submit(&[commands]).unwrap();
    device.lose();
    assert_eq!(device.wait(submitted), Err(VulkanError::DeviceLost));
    assert_eq!(device.submit(&[commands]), Err(VulkanError::DeviceLost));
    assert_eq!(device.wait_for_all(), Err(VulkanError::DeviceLost));
    // Dropping the pool waits for the device.
    drop(pool);
    drop(buffer);
    drop(device);
    assert_eq!(instance.messages(), Vec::<String>::new());
}
