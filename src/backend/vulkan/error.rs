//! Errors of the Vulkan backend.

use ash::vk;
use cuelight_shaders::gpu::Module;

use crate::cancel::LoadCancelled;
use crate::memory::format_bytes;

/// What a container lacks in which an NVIDIA GPU computes but has no Vulkan driver. The driver is mounted from outside, and needs
/// libraries of the image.
pub const NVIDIA_CONTAINER_HINT: &str = "a container with an NVIDIA GPU needs the packages libvulkan1, libegl1, libgl1, libx11-6 \
                                         and libxext6, and NVIDIA_DRIVER_CAPABILITIES=graphics,compute when it is started";

/// Why a Vulkan device cannot be used, or why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VulkanError {
    /// The loader's library is not installed.
    #[error(
        "the Vulkan loader was not found ({0}); install it (Debian and Ubuntu: libvulkan1, Fedora: vulkan-loader, macOS: \
         MoltenVK) and a driver for the GPU, or use the CPU"
    )]
    NoLoader(String),
    /// The loader finds no driver.
    #[error(
        "no Vulkan driver was found; install the GPU's driver (Mesa: mesa-vulkan-drivers), or use the CPU; {NVIDIA_CONTAINER_HINT}"
    )]
    NoDriver,
    /// The load was ended early.
    #[error(transparent)]
    Cancelled(#[from] LoadCancelled),
    /// No device has that index.
    #[error("there is no Vulkan device {index}; this machine has {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested index.
        index: usize,
        /// The number of devices.
        count: usize,
    },
    /// The device lacks a feature that every shader needs.
    #[error("the Vulkan device {name} cannot be used: it lacks {}", missing.join(", "))]
    Unsuitable {
        /// The device's name.
        name: String,
        /// The features that it lacks.
        missing: Vec<String>,
    },
    /// The device has not enough free memory.
    #[error(
        "the device has not enough free memory{} for {what}; a smaller quantization, a shorter context, fewer concurrent \
         sequences or smaller batches need less",
        needed(*bytes)
    )]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// The number of bytes; 0 if unknown.
        bytes: u64,
    },
    /// One allocation would be larger than the device allows.
    #[error(
        "{what} needs {} in one allocation, and the device allocates at most {} at once",
        format_bytes(*bytes), format_bytes(*limit)
    )]
    TooLargeAtOnce {
        /// What the memory was for.
        what: String,
        /// The number of bytes; 0 if unknown.
        bytes: u64,
        /// The maximum size of an allocation in bytes.
        limit: u64,
    },
    /// The driver cannot create a pipeline from a shader.
    #[error("the driver rejects the shader {}: {result}", module.name())]
    Pipeline {
        /// The shader.
        module: Module,
        /// The driver's result code.
        result: vk::Result,
    },
    /// The device was lost.
    #[error("the driver reports that the device was lost")]
    DeviceLost,
    /// Any other call failed.
    #[error("{call} failed: {result}")]
    Call {
        /// The name of the call.
        call: &'static str,
        /// The driver's result code.
        result: vk::Result,
    },
}

/// The amount for an error message; empty if unknown.
fn needed(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" ({} needed)", format_bytes(bytes)) }
}

impl VulkanError {
    /// Converts the result code of a failed call; for `map_err`.
    pub(super) fn of(call: &'static str) -> impl FnOnce(vk::Result) -> VulkanError {
        move |result| match result {
            vk::Result::ERROR_DEVICE_LOST => VulkanError::DeviceLost,
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                VulkanError::OutOfMemory { what: call.to_owned(), bytes: 0 }
            }
            result => VulkanError::Call { call, result },
        }
    }
}
