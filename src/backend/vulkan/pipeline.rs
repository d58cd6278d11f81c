//! Pipelines: created on first use and cached; the driver's compiled code is cached on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ash::vk;
use cuelight_shaders::gpu::{Dispatch, Module, Push};

use super::error::VulkanError;
use super::probe::DeviceInfo;

/// The pipelines of a device. All have the same layout: push constants and no descriptor sets.
pub(super) struct Pipelines {
    pub layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    /// The subgroup size required for shaders that need full subgroups.
    subgroup_size: u32,
    cache_state: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    modules: HashMap<Module, vk::ShaderModule>,
    pipelines: HashMap<(Module, Vec<(u32, u32)>), vk::Pipeline>,
    /// Whether pipelines were created since the file was written.
    is_unsaved: bool,
}

impl Pipelines {
    pub fn new(device: &ash::Device, info: &DeviceInfo, folder: Option<&Path>) -> Result<Self, VulkanError> {
        let range =
            vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(Push::MAX_BYTES as u32);
        let ranges = [range];
        let layout = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        // SAFETY: the device is alive.
        let layout = unsafe { device.create_pipeline_layout(&layout, None) };
        let layout = layout.map_err(VulkanError::of("vkCreatePipelineLayout"))?;
        // Each driver and each version of it has its own file, because a cache is useless to any other. The
        // driver validates the content.
        let name = info.pipeline_cache_uuid.map(|byte| format!("{byte:02x}")).concat();
        let file = folder.map(|folder| folder.join(format!("{name}.bin")));
        let data = file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let create = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: as above.
        let cache = unsafe { device.create_pipeline_cache(&create, None) };
        let cache = cache.map_err(VulkanError::of("vkCreatePipelineCache"))?;
        let subgroup_size = info.limits.subgroup_size;
        Ok(Pipelines { layout, cache, file, subgroup_size, cache_state: Mutex::default() })
    }

    /// The pipeline of a dispatch; created on first use.
    pub fn get(&self, device: &ash::Device, dispatch: &Dispatch) -> Result<vk::Pipeline, VulkanError> {
        let mut state = self.cache_state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (dispatch.module, dispatch.constants.clone());
        if let Some(pipeline) = state.pipelines.get(&key) {
            return Ok(*pipeline);
        }
        let module = match state.modules.get(&dispatch.module) {
            Some(module) => *module,
            None => {
                let module = create_module(device, dispatch.module)?;
                state.modules.insert(dispatch.module, module);
                module
            }
        };
        let pipeline = self.create(device, module, dispatch)?;
        state.pipelines.insert(key, pipeline);
        state.is_unsaved = true;
        Ok(pipeline)
    }

    fn create(
        &self,
        device: &ash::Device,
        module: vk::ShaderModule,
        dispatch: &Dispatch,
    ) -> Result<vk::Pipeline, VulkanError> {
        let entries: Vec<_> = (0..)
            .zip(&dispatch.constants)
            .map(|(index, (id, _))| vk::SpecializationMapEntry::default().constant_id(*id).offset(4 * index).size(4))
            .collect();
        let values: Vec<u8> = dispatch.constants.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&values);
        let mut size =
            vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(self.subgroup_size);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&constants);
        if dispatch.module.needs_whole_subgroups() {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS).push_next(&mut size);
        }
        let create = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        // SAFETY: the device is alive; module and layout belong to it.
        let pipelines = unsafe { device.create_compute_pipelines(self.cache, &[create], None) };
        match pipelines {
            Ok(pipelines) => Ok(pipelines[0]),
            Err((_, result)) => Err(VulkanError::Pipeline { module: dispatch.module, result }),
        }
    }

    /// Writes the driver's cache to disk if it has changed. Errors are ignored: without the file only the next start is slower.
    pub fn save(&self, device: &ash::Device) {
        let mut state = self.cache_state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = self.file.as_ref().filter(|_| state.is_unsaved) else { return };
        state.is_unsaved = false;
        // SAFETY: the cache belongs to the device.
        let Ok(data) = (unsafe { device.get_pipeline_cache_data(self.cache) }) else { return };
        // Written to a temporary file and renamed, because other processes may read or write the file now.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let temporary = file.with_extension(format!("{}-{number}.part", std::process::id()));
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| std::fs::write(&temporary, data));
        if written.and_then(|()| std::fs::rename(&temporary, file)).is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// Destroys all pipelines.
    ///
    /// # Safety
    /// No pipeline may be in use, now or later.
    pub unsafe fn destroy(&mut self, device: &ash::Device) {
        self.save(device);
        let state = std::mem::take(self.cache_state.get_mut().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the caller guarantees that no pipeline is in use.
        unsafe {
            for pipeline in state.pipelines.into_values() {
                device.destroy_pipeline(pipeline, None);
            }
            for module in state.modules.into_values() {
                device.destroy_shader_module(module, None);
            }
            device.destroy_pipeline_cache(self.cache, None);
            device.destroy_pipeline_layout(self.layout, None);
        }
    }
}

fn create_module(device: &ash::Device, module: Module) -> Result<vk::ShaderModule, VulkanError> {
    let words: Vec<u32> = module.code().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let create = vk::ShaderModuleCreateInfo::default().code(&words);
    // SAFETY: the device is alive; the words are SPIR-V that was compiled with this program.
    unsafe { device.create_shader_module(&create, None) }.map_err(|result| VulkanError::Pipeline { module, result })
}
