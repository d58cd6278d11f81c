//! Loads a model: plans its memory before anything is allocated, then builds its engine.
//!
//! [`plan()`] reads headers only and returns a [`LoadPlan`] with the memory that the model will use, or an error if it does not
//! fit. [`LoadPlan::load`] then loads it.
//!
//! - [`options`]: what to load and how
//! - [`error`]: why it cannot be loaded
//! - [`mod@plan`]: the plan, and loading by it
//! - [`division`]: divides a model among devices
//! - [`cache_layout`]: what copies of KV blocks and recurrent states depend on
//! - [`part`]: the part of a model on one device
//! - [`host_part`]: experts that the CPU computes for a device
//! - [`expert_cache`]: divides a device's expert cache among layers
//! - [`replicas`]: plans for several copies of a model
//! - [`text`]: tokenizer and chat template
//! - [`guarded`]: an engine that checks its model files
//! - [`card`], [`progress`]: facts about a model, and how far its load is
//! - [`recommended`]: what its publisher recommends next to the file

mod cache_layout;
mod card;
mod division;
mod error;
mod expert_cache;
mod guarded;
mod host_part;
mod options;
mod part;
mod plan;
mod progress;
mod recommended;
mod replicas;
mod text;

pub use crate::backend::vulkan::{VulkanError, VulkanOptions};
pub use crate::cancel::{LoadCancel, LoadCancelled};
pub use crate::device::{ComputeDevice, CpuExperts, Devices, ExpertStreaming, Shares, UnevenDevices};
pub use crate::mapped_file::{FileChange, ModelFiles};
pub use crate::memory::{MemoryBreakdown, MemoryPlan};
pub use crate::model::Section;
pub use card::ModelCard;
pub use cuelight_shaders::attention::KvType;
pub use cuelight_shaders::cpu::{ActivationBits, Kernel};
pub use cuelight_shaders::tuning::Tuning;
pub use error::LoadError;
pub use options::{ChatTemplateOptions, CompanionMemory, GivenTemplate, LoadOptions, Source, TierMemory};
pub(crate) use part::{ModelPart, Target};
pub use plan::{LoadPlan, LoadedModel, is_drafter, plan};
pub use progress::LoadProgress;
pub use recommended::{Recommended, RequestDefaults};
pub use replicas::plan_replicas;
pub use text::{chat_template, tokenizer};
