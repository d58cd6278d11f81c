//! What a device is and can do: asked of it bit by bit, never guessed from its name.

use ash::vk;
use cuelight_shaders::gpu::DeviceLimits;
use cuelight_shaders::matmul::cooperative_shape_fits;

use super::instance::{Extensions, Instance};

/// A device, for people and for the engine.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// N of `--device vulkan:N`.
    pub index: usize,
    /// As its maker calls it.
    pub name: String,
    /// Whether it is a card, part of the processor, or the processor itself.
    pub kind: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// The version of Vulkan: (1, 3).
    pub api_version: (u32, u32),
    /// Memory next to the device, in bytes.
    pub memory_bytes: u64,
    /// What ops choose by.
    pub limits: DeviceLimits,
    /// Most bytes of one allocation.
    pub max_allocation_bytes: u64,
    /// What every shader needs and the device lacks; empty when it can be used.
    pub missing: Vec<String>,
    /// What would make it faster and is not there, with what that costs.
    pub lacking: Vec<&'static str>,
    /// Nanoseconds of a tick of its clock; 0 when it has none.
    pub timestamp_ns: f32,
    pub(super) raw: vk::PhysicalDevice,
    pub(super) queue_family: Option<u32>,
    pub(super) extensions: OptionalExtensions,
    pub(super) pipeline_cache_uuid: [u8; vk::UUID_SIZE],
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
}

/// Extensions that are used where they are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OptionalExtensions {
    pub memory_budget: bool,
    /// Must be asked for where it is: MoltenVK.
    pub portability_subset: bool,
    /// Matrices, and everything that their shaders need besides.
    pub cooperative_matrix: bool,
}

impl DeviceInfo {
    pub(super) fn probe(instance: &Instance, index: usize, raw: vk::PhysicalDevice) -> Self {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut allocation = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut driver)
            .push_next(&mut subgroup)
            .push_next(&mut allocation);
        // SAFETY: the device is one of the instance; every structure in the chain lives until the call returns.
        unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
        let vk::PhysicalDeviceProperties { limits, device_type, api_version, pipeline_cache_uuid, .. } =
            properties.properties;
        let name = text(properties.properties.device_name_as_c_str());
        let extensions = Extensions::of_device(instance, raw);
        // SAFETY: as above.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(raw) };
        // SAFETY: as above.
        let families = unsafe { instance.raw.get_physical_device_queue_family_properties(raw) };
        let queue_family = families.iter().position(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let timestamps = queue_family.is_some_and(|family| families[family].timestamp_valid_bits == 64);
        let api_version = (vk::api_version_major(api_version), vk::api_version_minor(api_version));
        let cooperative_matrix = cooperative_matrix(instance, raw, api_version, &extensions);
        let mut missing = missing_features(instance, raw, api_version);
        if queue_family.is_none() {
            missing.push("a queue for compute".to_owned());
        }
        DeviceInfo {
            index,
            name,
            kind: kind(device_type),
            driver: format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str())),
            api_version,
            memory_bytes: local_heaps(&memory).map(|heap| heap.size).max().unwrap_or(0),
            limits: DeviceLimits {
                subgroup_size: subgroup.subgroup_size,
                max_workgroup_size: limits
                    .max_compute_work_group_invocations
                    .min(limits.max_compute_work_group_size[0]),
                max_groups: limits.max_compute_work_group_count,
                shared_memory_bytes: limits.max_compute_shared_memory_size,
                cooperative_matrix,
            },
            max_allocation_bytes: allocation.max_memory_allocation_size,
            missing,
            lacking: lacking(&extensions, cooperative_matrix),
            timestamp_ns: if timestamps { limits.timestamp_period } else { 0.0 },
            raw,
            queue_family: queue_family.and_then(|family| u32::try_from(family).ok()),
            extensions: OptionalExtensions {
                memory_budget: extensions.has(ash::ext::memory_budget::NAME),
                portability_subset: extensions.has(ash::khr::portability_subset::NAME),
                cooperative_matrix: cooperative_matrix.is_some(),
            },
            pipeline_cache_uuid,
            memory,
        }
    }

    /// Whether the device computes on the machine's own processor.
    #[must_use]
    pub fn is_processor(&self) -> bool {
        self.kind == PROCESSOR
    }
}

const PROCESSOR: &str = "processor";

fn kind(device_type: vk::PhysicalDeviceType) -> &'static str {
    match device_type {
        vk::PhysicalDeviceType::DISCRETE_GPU => "card",
        vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated",
        vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
        vk::PhysicalDeviceType::CPU => PROCESSOR,
        _ => "other",
    }
}

fn text(name: Result<&std::ffi::CStr, impl Sized>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The heaps next to the device.
pub(super) fn local_heaps(memory: &vk::PhysicalDeviceMemoryProperties) -> impl Iterator<Item = vk::MemoryHeap> {
    let heaps = memory.memory_heaps[..memory.memory_heap_count as usize].iter().copied();
    heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
}

/// The features that every shader and the recorder rely on.
pub(super) struct Required<'a> {
    pub core: vk::PhysicalDeviceFeatures,
    pub v11: vk::PhysicalDeviceVulkan11Features<'a>,
    pub v12: vk::PhysicalDeviceVulkan12Features<'a>,
    pub v13: vk::PhysicalDeviceVulkan13Features<'a>,
}

impl Required<'_> {
    pub fn new() -> Self {
        Required {
            core: vk::PhysicalDeviceFeatures::default().shader_int64(true),
            v11: vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true),
            v12: vk::PhysicalDeviceVulkan12Features::default()
                .buffer_device_address(true)
                .timeline_semaphore(true)
                .scalar_block_layout(true)
                .host_query_reset(true),
            v13: vk::PhysicalDeviceVulkan13Features::default().synchronization2(true).maintenance4(true),
        }
    }
}

fn missing_features(instance: &Instance, raw: vk::PhysicalDevice, api_version: (u32, u32)) -> Vec<String> {
    if api_version < (1, 3) {
        return vec![format!("Vulkan 1.3 (it has {}.{}; a newer driver may have it)", api_version.0, api_version.1)];
    }
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut found = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the device is one of the instance; every structure in the chain lives until the call returns.
    unsafe { instance.raw.get_physical_device_features2(raw, &mut found) };
    let core = found.features;
    let bits = [
        (core.shader_int64, "shaderInt64"),
        (v11.storage_buffer16_bit_access, "storageBuffer16BitAccess"),
        (v12.buffer_device_address, "bufferDeviceAddress"),
        (v12.timeline_semaphore, "timelineSemaphore"),
        (v12.scalar_block_layout, "scalarBlockLayout"),
        (v12.host_query_reset, "hostQueryReset"),
        (v13.synchronization2, "synchronization2"),
        (v13.maintenance4, "maintenance4"),
    ];
    bits.iter().filter(|(bit, _)| *bit == vk::FALSE).map(|(_, name)| (*name).to_owned()).collect()
}

/// The shape of matrices that subgroups multiply, float16 times float16 summed in float32: the largest that fits the shaders,
/// where the device has all that they need.
fn cooperative_matrix(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    api_version: (u32, u32),
    extensions: &Extensions,
) -> Option<[u32; 3]> {
    if api_version < (1, 3) || !extensions.has(ash::khr::cooperative_matrix::NAME) {
        return None;
    }
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut found =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut matrices).push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the device is one of the instance; every structure in the chain lives until the call returns.
    unsafe { instance.raw.get_physical_device_features2(raw, &mut found) };
    let bits = [
        matrices.cooperative_matrix,
        v12.shader_float16,
        v12.vulkan_memory_model,
        v12.vulkan_memory_model_device_scope,
        v13.subgroup_size_control,
        v13.compute_full_subgroups,
    ];
    if bits.contains(&vk::FALSE) || !subgroup_size_can_be_asked_for(instance, raw) {
        return None;
    }
    let functions = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device is one of the instance, and has the extension.
    let shapes = unsafe { functions.get_physical_device_cooperative_matrix_properties(raw) }.unwrap_or_default();
    let (half, float) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
    let of_kind = shapes.iter().filter(|shape| {
        (shape.a_type, shape.b_type, shape.c_type, shape.result_type) == (half, half, float, float)
            && shape.scope == vk::ScopeKHR::SUBGROUP
    });
    let fitting =
        of_kind.map(|shape| [shape.m_size, shape.n_size, shape.k_size]).filter(|s| cooperative_shape_fits(*s));
    fitting.max_by_key(|shape| shape.iter().product::<u32>())
}

/// Whether a compute shader may say which subgroup size it wants: the one that the device tells may not be its only one.
fn subgroup_size_can_be_asked_for(instance: &Instance, raw: vk::PhysicalDevice) -> bool {
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
    // SAFETY: the device is one of the instance; every structure in the chain lives until the call returns.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE)
}

fn lacking(extensions: &Extensions, cooperative_matrix: Option<[u32; 3]>) -> Vec<&'static str> {
    let memory_budget = (!extensions.has(ash::ext::memory_budget::NAME))
        .then_some("VK_EXT_memory_budget: what other programs use is not seen when memory is planned");
    let matrices = cooperative_matrix.is_none().then_some(
        "VK_KHR_cooperative_matrix with float16 summed in float32: prompts and large batches are computed in float32",
    );
    [memory_budget, matrices].into_iter().flatten().collect()
}
