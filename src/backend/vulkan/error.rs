//! What may go wrong between a graph and a Vulkan device.

use ash::vk;
use cuelight_shaders::gpu::Module;

use crate::memory::format_bytes;

/// Why a Vulkan device cannot be used, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VulkanError {
    /// The loader's library is not there.
    #[error(
        "the Vulkan loader was not found ({0}); install it (Debian and Ubuntu: libvulkan1, Fedora: vulkan-loader, macOS: \
         MoltenVK) and a driver for the GPU, or use --device cpu"
    )]
    NoLoader(String),
    /// The loader finds no driver.
    #[error("Vulkan has no driver here; install the one of the GPU (Mesa: mesa-vulkan-drivers), or use --device cpu")]
    NoDriver,
    /// No device has that number.
    #[error("there is no Vulkan device {index}; `cuelight devices` lists the {count} that there are")]
    NoSuchDevice {
        /// The number asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device lacks something that every shader needs.
    #[error("the Vulkan device {name} cannot be used: it lacks {}", missing.join(", "))]
    Unsuitable {
        /// The device.
        name: String,
        /// What it lacks.
        missing: Vec<String>,
    },
    /// There is not enough memory.
    #[error(
        "the device has no {} left for {what}; a smaller quantisation, --ctx-size, --max-seqs or --max-batched-tokens would help",
        format_bytes(*bytes)
    )]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// One allocation would be larger than the device allows.
    #[error(
        "{what} takes {}, and the device allocates at most {} at once",
        format_bytes(*bytes), format_bytes(*limit)
    )]
    TooLargeAtOnce {
        /// What it was for.
        what: String,
        /// How much.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// A shader does not become a pipeline.
    #[error("the driver refuses the shader {}: {result}", module.name())]
    Pipeline {
        /// The shader.
        module: Module,
        /// Why.
        result: vk::Result,
    },
    /// The device is gone.
    #[error("the driver reports that the device was lost")]
    DeviceLost,
    /// Any other call failed.
    #[error("{call} failed: {result}")]
    Call {
        /// The call.
        call: &'static str,
        /// Its answer.
        result: vk::Result,
    },
}

impl VulkanError {
    /// Names the call that failed: for `map_err`.
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
