//! What encoders of images and of audio share: both are towers of transformer layers with a projector.
//!
//! - [`error`]: why a file with a tower cannot be used; [`mod@file`]: opens one, and says which towers it has
//! - [`keys`]: the keys of a tower, checked
//! - [`blocks`]: the transformer layers; [`merge`]: the merging of rows after them; [`head`]: the projector
//! - [`relative`]: attention to relative positions
//! - [`steps`]: the rows of a tower as a step of its stage
//! - [`plan`]: the memory of a tower, and loading it

pub mod blocks;
pub mod error;
pub mod file;
pub mod head;
pub mod keys;
pub mod merge;
pub mod plan;
pub mod relative;
pub mod steps;

use std::path::PathBuf;

use cuelight_shaders::cpu::{ActivationBits, Kernel};
use cuelight_shaders::tuning::Tuning;

use crate::backend::vulkan::VulkanOptions;
use crate::device::ComputeDevice;

/// Which file with towers to load, and how they compute.
#[derive(Debug, Clone)]
pub struct TowerOptions {
    /// A GGUF file with towers (mmproj), or a Hugging Face directory.
    pub path: PathBuf,
    /// A quantized copy of its tensors, a GGUF file; `None` to read them as they are stored.
    pub copy: Option<PathBuf>,
    /// The device.
    pub device: ComputeDevice,
    /// Threads for CPU kernels, including the caller's own.
    pub threads: usize,
    /// The instruction set of CPU kernels.
    pub kernel: Kernel,
    /// What CPU kernels adapt to the CPU. It changes no result.
    pub tuning: Tuning,
    /// How a Vulkan device is used.
    pub vulkan: VulkanOptions,
    /// The precision to which integer CPU kernels round the inputs of products.
    pub activation_bits: ActivationBits,
}
