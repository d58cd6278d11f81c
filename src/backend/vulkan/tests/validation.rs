//! That silence of the validation layer means something.
//!
//! It sees every call, and the order of copies and fills. What shaders do through addresses it does not see: with Debian's
//! layer 1.3.239 dispatches that write the same bytes without a barrier between pass in silence. So what dispatches say that
//! they use is checked in `one_op`, and what the recorder makes of that beside a model in `record`.

use std::sync::Arc;

use ash::vk;
use cuelight_shaders::{attention, rms_norm};

use super::one_op::OneOp;
use super::{assert_clean, own_device, skip};
use crate::backend::vulkan::memory::{Buffer, Place};
use crate::backend::vulkan::record::{CommandPool, Recorder};
use crate::backend::vulkan::{Device, VulkanError, VulkanOptions};

/// A device of its own with the layer looking on: what it complains of must not spoil other tests.
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
fn the_layer_sees_two_writes_without_a_barrier_between() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, Place::Device).unwrap();
    record_by_hand(&device, &pool, |commands| {
        for value in [1, 2] {
            // SAFETY: recording; that the order of the two is not defined is what the layer must notice.
            unsafe { device.raw.cmd_fill_buffer(commands, buffer.raw, 0, vk::WHOLE_SIZE, value) };
        }
    });
    let complaints = device.instance().complaints();
    assert!(complaints.iter().any(|complaint| complaint.contains("WRITE_AFTER_WRITE")), "it only says {complaints:?}");
}

#[test]
fn the_layer_is_content_with_what_the_recorder_makes_of_the_same() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, Place::Device).unwrap();
    let mut recorder = Recorder::begin(&device, pool.allocate().unwrap()).unwrap();
    recorder.clear(&buffer);
    recorder.clear(&buffer);
    recorder.copy((&buffer, 0), (&buffer, 512), 512);
    recorder.clear(&buffer);
    device.wait(device.submit(&[recorder.end().unwrap()]).unwrap()).unwrap();
    assert_clean(&device);
}

#[test]
fn the_layer_sees_a_copy_beyond_the_end() {
    let Some(device) = validated_device() else { return };
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 1024, Place::Device).unwrap();
    let commands = pool.allocate().unwrap();
    let copy = vk::BufferCopy::default().dst_offset(512).size(1024);
    // SAFETY: recorded to be looked at; it is never submitted.
    unsafe {
        device.raw.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()).unwrap();
        device.raw.cmd_copy_buffer(commands, buffer.raw, buffer.raw, &[copy]);
    }
    assert!(!device.instance().complaints().is_empty());
}

#[test]
fn a_device_is_left_with_nothing_on_it() {
    let Some(device) = validated_device() else { return };
    let instance = Arc::clone(device.instance());
    for case in [rms_norm::cases(), attention::cases()].iter().flat_map(|cases| cases.first()) {
        let op = OneOp::new(&device, &*case.op, case.cache.as_ref()).unwrap();
        let step = &case.steps[0];
        op.run(&step.batch, step.rows, &step.inputs).unwrap();
    }
    assert_eq!(Arc::strong_count(&device), 1, "something on the device is left");
    // The layer complains of whatever a device still has when it goes.
    drop(device);
    assert_eq!(instance.complaints(), Vec::<String>::new());
}

#[test]
fn a_device_that_is_lost_stays_lost_and_what_it_still_runs_is_waited_for() {
    let Some(device) = validated_device() else { return };
    let instance = Arc::clone(device.instance());
    let pool = CommandPool::new(&device).unwrap();
    let buffer = Buffer::new(&device, "a test", 64 << 20, Place::Device).unwrap();
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
    // The pool goes first, and waits.
    drop(pool);
    drop(buffer);
    drop(device);
    assert_eq!(instance.complaints(), Vec::<String>::new());
}
