//! Remedies for errors of the engine, with the flags that apply. The engine's messages name settings in words only.

use cuelight_engine::checkpoint::OpenError;
use cuelight_engine::load::{LoadError, VulkanError};
use cuelight_engine::memory::TooLarge;
use cuelight_engine::model::ModelError;
use cuelight_engine::placement::SplitError;

use super::error::CliError;
use crate::core::error_chain::error_chain;

/// The message of a load error, with its causes and a remedy.
pub fn explain_load(error: &LoadError) -> String {
    let message = error_chain(error);
    remedy(error).map_or(message.clone(), |remedy| format!("{message}; {remedy}"))
}

/// The message of a command's error, with its causes and, for a load error, a remedy.
pub fn explain(error: &CliError) -> String {
    match error {
        CliError::Other(inner) => inner.downcast_ref().map_or_else(|| error_chain(error), explain_load),
        _ => error_chain(error),
    }
}

/// The same error for a model that the setting `memory` leaves too little for, with that setting as a remedy.
pub fn over_budget(error: CliError) -> CliError {
    let CliError::Other(inner) = &error else { return error };
    match inner.downcast_ref() {
        Some(load @ LoadError::TooLarge { source: TooLarge::Memory { .. }, .. }) => {
            let others = remedy(load).unwrap_or_default();
            CliError::Failed(format!("{}; a higher --memory, {others}", error_chain(load)))
        }
        _ => error,
    }
}

/// What to do about a load error, if flags can help.
fn remedy(error: &LoadError) -> Option<&'static str> {
    match error {
        LoadError::TooLarge { source, cache_bytes, .. } => Some(remedy_for_size(source, cache_bytes.is_some())),
        LoadError::Open(OpenError::HuggingFace(error)) if error.lacks_language_model() => {
            Some("run it with --mmproj and the path of this directory")
        }
        LoadError::ReplicaTooLarge { source, .. } => remedy(source),
        LoadError::Model(ModelError::DrafterAlone { .. }) => Some("name that model, and this one with --draft"),
        LoadError::NotGiven { .. } => Some("raise that limit, or use a smaller --kv-memory or --ctx-size"),
        LoadError::ChatTemplate { .. } => Some("--chat-template FILE gives another"),
        LoadError::UnevenDevices(_) => Some("--replicas must divide the number of devices in --device"),
        LoadError::Split(SplitError::TooFewParts { .. }) => Some("name fewer devices in --device"),
        LoadError::Split(SplitError::LastLayers { .. }) => Some("give --gpu-layers one of these numbers"),
        LoadError::Split(_) => Some("--split needs one share above 0 for each device, such as 3,1"),
        LoadError::GpuLayersWithoutGpu { .. } => {
            Some("use --gpu-layers with --device vulkan; --split divides the layers among several devices")
        }
        LoadError::GpuLayersWithSplit => Some("give only one of --gpu-layers and --split"),
        LoadError::CpuExpertsWithSplit => Some("use --cpu-experts without --split and --gpu-layers"),
        LoadError::ExpertCacheWithoutDevice => {
            Some("use --expert-cache with --device vulkan, without --split and --gpu-layers")
        }
        LoadError::ExpertCacheWithDeterministic => Some("give only one of --expert-cache and --deterministic"),
        LoadError::StreamingWithoutCache { .. } => Some("use --expert-streaming with --expert-cache SIZE"),
        LoadError::ExpertCacheTooSmall { .. } => Some("raise --expert-cache"),
        LoadError::Kernel { .. } => Some("without --kernel the fastest supported kernel is used"),
        LoadError::Vulkan(VulkanError::NoLoader(_) | VulkanError::NoDriver) => Some("--device cpu uses the CPU"),
        LoadError::Vulkan(VulkanError::NoSuchDevice { .. }) => Some("`cuelight devices` lists them"),
        LoadError::Vulkan(VulkanError::OutOfMemory { .. }) => {
            Some("a lower --ctx-size, --max-seqs or --max-batched-tokens would help")
        }
        _ => None,
    }
}

/// What to do about a model that does not fit.
fn remedy_for_size(error: &TooLarge, has_cache: bool) -> &'static str {
    match error {
        TooLarge::KvMemory { .. } => "raise --kv-memory or lower --ctx-size",
        TooLarge::StateMemory { .. } => "raise --state-memory",
        TooLarge::Memory { .. } if has_cache => {
            "a smaller quantization or a lower --ctx-size, --max-batched-tokens or --expert-cache would help"
        }
        TooLarge::Memory { needed, .. } if needed.tiers > 0 => {
            "a lower --kv-host-memory, a smaller quantization or a lower --ctx-size or --max-batched-tokens would help"
        }
        TooLarge::Memory { .. } => "a smaller quantization or a lower --ctx-size or --max-batched-tokens would help",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_error_is_explained_with_the_flags_that_help() {
        let source = TooLarge::KvMemory { context_tokens: 512, needed_bytes: 2 << 20, kv_bytes: 1 << 20 };
        let error = LoadError::TooLarge { path: "m.gguf".into(), cache_bytes: None, source };
        let expected = "m.gguf: a context of 512 tokens needs 2.0 MiB of KV cache, but the KV cache is limited to 1.0 MiB; \
                        raise --kv-memory or lower --ctx-size";
        assert_eq!(explain_load(&error), expected);
        assert_eq!(explain(&CliError::other(error)), expected);
    }

    #[test]
    fn other_errors_are_shown_without_a_remedy() {
        let error = LoadError::ZeroSetting { setting: "the number of threads" };
        assert_eq!(explain(&CliError::other(error)), "the number of threads must be at least 1");
        assert_eq!(explain(&CliError::Usage("no model".to_owned())), "no model");
    }
}
