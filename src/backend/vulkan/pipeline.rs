//! Pipelines, made when they are first asked for and kept; what the driver compiled is kept on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ash::vk;
use cuelight_shaders::gpu::{Dispatch, Module, Push};

use super::error::VulkanError;
use super::probe::DeviceInfo;

/// The pipelines of a device. They all have the same layout: nothing bound, and push constants.
pub(super) struct Pipelines {
    pub layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    /// What a shader that needs whole subgroups can count on.
    subgroup_size: u32,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    modules: HashMap<Module, vk::ShaderModule>,
    pipelines: HashMap<(Module, Vec<(u32, u32)>), vk::Pipeline>,
    /// Whether there are some that the file does not have.
    new: bool,
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
        // A driver's cache is of no use to another driver, or another version of it: the name tells them apart, and the
        // driver checks the content.
        let name = info.pipeline_cache_uuid.map(|byte| format!("{byte:02x}")).concat();
        let file = folder.map(|folder| folder.join(format!("{name}.bin")));
        let data = file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let create = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: as above.
        let cache = unsafe { device.create_pipeline_cache(&create, None) };
        let cache = cache.map_err(VulkanError::of("vkCreatePipelineCache"))?;
        let subgroup_size = info.limits.subgroup_size;
        Ok(Pipelines { layout, cache, file, subgroup_size, made: Mutex::default() })
    }

    /// The pipeline that runs a dispatch.
    pub fn get(&self, device: &ash::Device, dispatch: &Dispatch) -> Result<vk::Pipeline, VulkanError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (dispatch.module, dispatch.constants.clone());
        if let Some(pipeline) = made.pipelines.get(&key) {
            return Ok(*pipeline);
        }
        let module = match made.modules.get(&dispatch.module) {
            Some(module) => *module,
            None => {
                let module = create_module(device, dispatch.module)?;
                made.modules.insert(dispatch.module, module);
                module
            }
        };
        let pipeline = self.create(device, module, dispatch)?;
        made.pipelines.insert(key, pipeline);
        made.new = true;
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
        // SAFETY: the device is alive; module and layout are its own.
        let pipelines = unsafe { device.create_compute_pipelines(self.cache, &[create], None) };
        match pipelines {
            Ok(pipelines) => Ok(pipelines[0]),
            Err((_, result)) => Err(VulkanError::Pipeline { module: dispatch.module, result }),
        }
    }

    /// Writes what the driver compiled to the disk, when there is news. A cache that cannot be written is only a slower start.
    pub fn save(&self, device: &ash::Device) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = self.file.as_ref().filter(|_| made.new) else { return };
        made.new = false;
        // SAFETY: the cache is the device's.
        let Ok(data) = (unsafe { device.get_pipeline_cache_data(self.cache) }) else { return };
        // Complete or not at all: others may read it now, or write one of their own.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let unfinished = file.with_extension(format!("{}-{number}.part", std::process::id()));
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| std::fs::write(&unfinished, data));
        if written.and_then(|()| std::fs::rename(&unfinished, file)).is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
    }

    /// Frees everything on the device.
    ///
    /// # Safety
    /// No pipeline may be in use, now or later.
    pub unsafe fn destroy(&mut self, device: &ash::Device) {
        self.save(device);
        let made = std::mem::take(self.made.get_mut().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the caller's promise.
        unsafe {
            for pipeline in made.pipelines.into_values() {
                device.destroy_pipeline(pipeline, None);
            }
            for module in made.modules.into_values() {
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
    // SAFETY: the device is alive; the words are SPIR-V of our own compiler.
    unsafe { device.create_shader_module(&create, None) }.map_err(|result| VulkanError::Pipeline { module, result })
}
