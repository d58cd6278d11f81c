//! The Vulkan loader, and the devices that it knows.
//!
//! The loader's library is opened at run time, so that the program starts on machines without it.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use super::error::VulkanError;
use super::probe::DeviceInfo;

/// How the loader is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceOptions {
    /// Have the validation layer, where it is installed, look at every call and the order of memory accesses.
    pub validation: bool,
}

/// The loader.
pub struct Instance {
    pub(super) raw: ash::Instance,
    /// Keeps the library open.
    pub(super) entry: ash::Entry,
    messenger: Option<Messenger>,
}

/// What the validation layer complained of.
struct Messenger {
    functions: ash::ext::debug_utils::Instance,
    raw: vk::DebugUtilsMessengerEXT,
    /// Boxed, for the layer holds its address.
    complaints: Box<Mutex<Vec<String>>>,
}

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    /// Opens the loader.
    ///
    /// # Errors
    /// [`VulkanError::NoLoader`] or [`VulkanError::NoDriver`], with what to install.
    pub fn load(options: InstanceOptions) -> Result<Arc<Instance>, VulkanError> {
        // SAFETY: the loader's library is the system's; opening it runs its initialisers, which is what is wanted.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| VulkanError::NoLoader(error.to_string()))?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"cuelight")
            .engine_name(c"cuelight")
            .api_version(vk::API_VERSION_1_3);
        let known = Extensions::of(&entry);
        let layers: Vec<_> =
            (options.validation && has_layer(&entry)).then_some(VALIDATION_LAYER.as_ptr()).into_iter().collect();
        let mut extensions = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if known.has(ash::khr::portability_enumeration::NAME) {
            extensions.push(ash::khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        if !layers.is_empty() {
            extensions.push(ash::ext::debug_utils::NAME.as_ptr());
        }
        let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions)
            .flags(flags);
        if !layers.is_empty() {
            info = info.push_next(&mut features);
        }
        // SAFETY: everything that `info` points at lives until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|result| match result {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => VulkanError::NoDriver,
            result => VulkanError::Call { call: "vkCreateInstance", result },
        })?;
        let mut instance = Instance { raw, entry, messenger: None };
        if !layers.is_empty() {
            instance.messenger = Some(Messenger::new(&instance)?);
        }
        Ok(Arc::new(instance))
    }

    /// Every device, in the loader's order, which is the order of `--device vulkan:N`.
    ///
    /// # Errors
    /// [`VulkanError`] when the loader cannot say.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, VulkanError> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() };
        let devices = devices.map_err(VulkanError::of("vkEnumeratePhysicalDevices"))?;
        Ok(devices.into_iter().enumerate().map(|(index, raw)| DeviceInfo::probe(self, index, raw)).collect())
    }

    /// Whether the validation layer is at work.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.messenger.is_some()
    }

    /// What the validation layer has complained of so far.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let complaints = self.messenger.as_ref().map(|messenger| messenger.complaints.lock());
        complaints.map_or_else(Vec::new, |complaints| complaints.unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance by `Arc`, so none is left; the messenger goes first.
        unsafe {
            if let Some(messenger) = self.messenger.take() {
                messenger.functions.destroy_debug_utils_messenger(messenger.raw, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

impl Messenger {
    fn new(instance: &Instance) -> Result<Self, VulkanError> {
        let functions = ash::ext::debug_utils::Instance::new(&instance.entry, &instance.raw);
        let complaints: Box<Mutex<Vec<String>>> = Box::default();
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
            )
            .pfn_user_callback(Some(note_complaint))
            .user_data(std::ptr::from_ref(&*complaints).cast_mut().cast());
        // SAFETY: `complaints` is boxed and outlives the messenger (see `Drop` of `Instance`).
        let raw = unsafe { functions.create_debug_utils_messenger(&info, None) };
        let raw = raw.map_err(VulkanError::of("vkCreateDebugUtilsMessengerEXT"))?;
        Ok(Messenger { functions, raw, complaints })
    }
}

unsafe extern "system" fn note_complaint(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    complaints: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and the pointer that `Messenger::new` gave it.
    let (message, complaints) = unsafe {
        let message = (*data).message_as_c_str().map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        (message, &*complaints.cast_const().cast::<Mutex<Vec<String>>>())
    };
    complaints.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    vk::FALSE
}

fn has_layer(entry: &ash::Entry) -> bool {
    // SAFETY: the loader is open.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER))
}

/// Extensions that the loader or a device has.
pub(super) struct Extensions(Vec<vk::ExtensionProperties>);

impl Extensions {
    fn of(entry: &ash::Entry) -> Self {
        // SAFETY: the loader is open.
        Extensions(unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default())
    }

    pub fn of_device(instance: &Instance, device: vk::PhysicalDevice) -> Self {
        // SAFETY: the device is one of the instance.
        Extensions(unsafe { instance.raw.enumerate_device_extension_properties(device) }.unwrap_or_default())
    }

    pub fn has(&self, name: &CStr) -> bool {
        self.0.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
    }
}
