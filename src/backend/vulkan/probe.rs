//! Properties and features of devices. They are queried from the driver and never guessed from the device's name.

use ash::vk;
use cuelight_shaders::gpu::DeviceLimits;
use cuelight_shaders::matmul::cooperative_shape_fits;

use super::error::VulkanError;
use super::instance::{Extensions, Instance};
use crate::memory;

/// A device that the loader lists.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Its index in the loader's list: N of `vulkan:N`.
    pub index: usize,
    /// The name that the driver reports.
    pub name: String,
    /// "discrete", "integrated", "virtual", "cpu" or "other".
    pub kind: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// The version of Vulkan: (1, 3).
    pub api_version: (u32, u32),
    /// Bytes of its largest device-local heap.
    pub memory_bytes: u64,
    /// The limits by which ops choose their shaders.
    pub limits: DeviceLimits,
    /// Maximum bytes of one allocation.
    pub max_allocation_bytes: u64,
    /// Required features that the device lacks; empty if it can be used.
    pub missing: Vec<String>,
    /// Optional features that the device lacks, each with the consequence.
    pub lacking: Vec<&'static str>,
    /// Nanoseconds per tick of its clock; 0 if it has none.
    pub timestamp_ns: f32,
    pub(super) raw: vk::PhysicalDevice,
    pub(super) queue_family: Option<u32>,
    pub(super) extensions: OptionalExtensions,
    pub(super) pipeline_cache_uuid: [u8; vk::UUID_SIZE],
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
}

/// Extensions that are used if the device has them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OptionalExtensions {
    pub memory_budget: bool,
    /// The specification requires enabling it where present (MoltenVK).
    pub portability_subset: bool,
    /// Cooperative matrices, with every other feature that their shaders need.
    pub cooperative_matrix: bool,
}

impl Instance {
    /// Every device, in the loader's order. The index in this list identifies a device.
    ///
    /// # Errors
    /// [`VulkanError`] when the loader cannot list the devices.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, VulkanError> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() };
        let devices = devices.map_err(VulkanError::of("vkEnumeratePhysicalDevices"))?;
        Ok(devices.into_iter().enumerate().map(|(index, raw)| DeviceInfo::probe(self, index, raw)).collect())
    }
}

impl DeviceInfo {
    fn probe(instance: &Instance, index: usize, raw: vk::PhysicalDevice) -> Self {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut allocation = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut buffer = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut driver)
            .push_next(&mut subgroup)
            .push_next(&mut allocation)
            .push_next(&mut buffer);
        // SAFETY: the device belongs to the instance; every structure in the chain outlives the call.
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
                max_workgroup_size: largest_workgroup(&limits),
                max_groups: limits.max_compute_work_group_count,
                shared_memory_bytes: limits.max_compute_shared_memory_size,
                compute_units: compute_units(instance, raw, &extensions),
                cooperative_matrix,
            },
            max_allocation_bytes: largest_allocation(&allocation, &buffer),
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

    /// The device of index `index`.
    ///
    /// # Errors
    /// [`VulkanError::NoDriver`], [`VulkanError::NoSuchDevice`], or the loader's error.
    pub fn find(instance: &Instance, index: usize) -> Result<DeviceInfo, VulkanError> {
        let mut devices = instance.devices()?;
        if index >= devices.len() {
            return Err(if devices.is_empty() {
                VulkanError::NoDriver
            } else {
                VulkanError::NoSuchDevice { index, count: devices.len() }
            });
        }
        Ok(devices.swap_remove(index))
    }

    /// Bytes of memory that a model may use: the free part of the largest device-local heap, as the driver reports it. For
    /// a device that uses the host's memory it is at most the machine's available memory.
    #[must_use]
    pub fn available_bytes(&self, instance: &Instance) -> u64 {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
        if self.extensions.memory_budget {
            properties = properties.push_next(&mut budget);
        }
        // SAFETY: the device belongs to the instance; the chain outlives the call.
        unsafe { instance.raw.get_physical_device_memory_properties2(self.raw, &mut properties) };
        let count = properties.memory_properties.memory_heap_count as usize;
        let heaps = properties.memory_properties.memory_heaps;
        let local = |heap: usize| heaps[heap].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let left = |heap: usize| match self.extensions.memory_budget {
            true => budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]),
            false => heaps[heap].size,
        };
        let available = (0..count).filter(|heap| local(*heap)).map(left).max().unwrap_or(0);
        match memory::available().filter(|_| self.uses_host_memory()) {
            Some(free) => free.min(available),
            None => available,
        }
    }

    /// Whether the device has no memory of its own.
    #[must_use]
    pub fn uses_host_memory(&self) -> bool {
        // Memory that the firmware sets aside for an integrated GPU is another heap.
        self.is_cpu() || (self.kind == INTEGRATED_KIND && self.memory.memory_heap_count == 1)
    }

    /// Whether the device is the machine's CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.kind == CPU_KIND
    }
}

const CPU_KIND: &str = "cpu";
const INTEGRATED_KIND: &str = "integrated";

fn kind(device_type: vk::PhysicalDeviceType) -> &'static str {
    match device_type {
        vk::PhysicalDeviceType::DISCRETE_GPU => "discrete",
        vk::PhysicalDeviceType::INTEGRATED_GPU => INTEGRATED_KIND,
        vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
        vk::PhysicalDeviceType::CPU => CPU_KIND,
        _ => "other",
    }
}

/// The most invocations of a workgroup in one dimension.
fn largest_workgroup(limits: &vk::PhysicalDeviceLimits) -> u32 {
    limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0])
}

/// The size of the largest allocation and the largest buffer, in bytes.
fn largest_allocation(
    allocation: &vk::PhysicalDeviceMaintenance3Properties<'_>,
    buffer: &vk::PhysicalDeviceMaintenance4Properties<'_>,
) -> u64 {
    match buffer.max_buffer_size {
        // The driver does not know the structure.
        0 => allocation.max_memory_allocation_size,
        most => most.min(allocation.max_memory_allocation_size),
    }
}

fn text(name: Result<&std::ffi::CStr, impl Sized>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The compute units of the device, where an extension of its vendor reports them.
fn compute_units(instance: &Instance, raw: vk::PhysicalDevice, extensions: &Extensions) -> u32 {
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut properties = vk::PhysicalDeviceProperties2::default();
    if extensions.has(ash::nv::shader_sm_builtins::NAME) {
        properties = properties.push_next(&mut nvidia);
    }
    if extensions.has(ash::amd::shader_core_properties2::NAME) {
        properties = properties.push_next(&mut amd);
    }
    // SAFETY: the device belongs to the instance and has the extensions; every structure in the chain outlives the call.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    match nvidia.shader_sm_count.max(amd.active_compute_unit_count) {
        0 => DeviceLimits::USUAL_COMPUTE_UNITS,
        units => units,
    }
}

/// The device-local heaps.
pub(super) fn local_heaps(memory: &vk::PhysicalDeviceMemoryProperties) -> impl Iterator<Item = vk::MemoryHeap> {
    let heaps = memory.memory_heaps[..memory.memory_heap_count as usize].iter().copied();
    heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
}

/// The features that the shaders and the recorder require.
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
            v13: vk::PhysicalDeviceVulkan13Features::default()
                .synchronization2(true)
                .maintenance4(true)
                .shader_integer_dot_product(true),
        }
    }
}

fn missing_features(instance: &Instance, raw: vk::PhysicalDevice, api_version: (u32, u32)) -> Vec<String> {
    if api_version < (1, 3) {
        return vec![format!(
            "Vulkan 1.3 (the driver has {}.{}; a newer driver may support it)",
            api_version.0, api_version.1
        )];
    }
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut found = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the device belongs to the instance; every structure in the chain outlives the call.
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
        (v13.shader_integer_dot_product, "shaderIntegerDotProduct"),
    ];
    bits.iter().filter(|(bit, _)| *bit == vk::FALSE).map(|(_, name)| (*name).to_owned()).collect()
}

/// The shape [m, n, k] of the cooperative matrices to use: float16 operands, float32 sums, multiplied by a subgroup. It is
/// the largest shape that the shaders support; `None` if the device lacks a feature that they need.
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
    // SAFETY: the device belongs to the instance; every structure in the chain outlives the call.
    unsafe { instance.raw.get_physical_device_features2(raw, &mut found) };
    let bits = [
        matrices.cooperative_matrix,
        v12.shader_float16,
        v12.vulkan_memory_model,
        v12.vulkan_memory_model_device_scope,
        v13.subgroup_size_control,
        v13.compute_full_subgroups,
    ];
    if bits.contains(&vk::FALSE) || !subgroup_size_is_selectable(instance, raw) {
        return None;
    }
    let functions = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device belongs to the instance and has the extension.
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

/// Whether a compute shader can require a subgroup size: a device may support more sizes than the one it reports.
fn subgroup_size_is_selectable(instance: &Instance, raw: vk::PhysicalDevice) -> bool {
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
    // SAFETY: the device belongs to the instance; every structure in the chain outlives the call.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE)
}

fn lacking(extensions: &Extensions, cooperative_matrix: Option<[u32; 3]>) -> Vec<&'static str> {
    let memory_budget = (!extensions.has(ash::ext::memory_budget::NAME))
        .then_some("VK_EXT_memory_budget: memory planning does not see what other programs use");
    let matrices = cooperative_matrix.is_none().then_some(
        "VK_KHR_cooperative_matrix with float16 summed in float32: prompts and large batches are computed in float32",
    );
    [memory_budget, matrices].into_iter().flatten().collect()
}
