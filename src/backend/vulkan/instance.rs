//! The Vulkan loader.
//!
//! The loader's library is opened at run time, so that the program also starts on machines without it.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use super::error::VulkanError;

/// Options of an [`Instance`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceOptions {
    /// Let the validation layer, if it is installed, check every call and the order of memory accesses.
    pub validation: bool,
}

/// An open Vulkan loader.
pub struct Instance {
    pub(super) raw: ash::Instance,
    /// Keeps the library open.
    pub(super) entry: ash::Entry,
    messenger: Option<Messenger>,
}

/// Collects the messages of the validation layer.
struct Messenger {
    functions: ash::ext::debug_utils::Instance,
    raw: vk::DebugUtilsMessengerEXT,
    /// Boxed, because the layer holds its address.
    messages: Box<Mutex<Vec<String>>>,
}

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    /// Opens the loader.
    ///
    /// # Errors
    /// [`VulkanError::NoLoader`] or [`VulkanError::NoDriver`], whose messages name the packages to install.
    pub fn load(options: InstanceOptions) -> Result<Arc<Instance>, VulkanError> {
        // SAFETY: opening the library runs its initialisers; the system's Vulkan loader is trusted code.
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
        // SAFETY: everything that `info` points to outlives the call.
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

    /// Whether the validation layer is active.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.messenger.is_some()
    }

    /// The messages of the validation layer so far.
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        let messages = self.messenger.as_ref().map(|messenger| messenger.messages.lock());
        messages.map_or_else(Vec::new, |messages| messages.unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance by `Arc`, so none is left. The messenger is destroyed before the instance.
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
        let messages: Box<Mutex<Vec<String>>> = Box::default();
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
            )
            .pfn_user_callback(Some(record_message))
            .user_data(std::ptr::from_ref(&*messages).cast_mut().cast());
        // SAFETY: `messages` is boxed and outlives the messenger (see `Drop` of `Instance`).
        let raw = unsafe { functions.create_debug_utils_messenger(&info, None) };
        let raw = raw.map_err(VulkanError::of("vkCreateDebugUtilsMessengerEXT"))?;
        Ok(Messenger { functions, raw, messages })
    }
}

unsafe extern "system" fn record_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data and the pointer that `Messenger::new` registered.
    let (message, messages) = unsafe {
        let message = (*data).message_as_c_str().map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        (message, &*messages.cast_const().cast::<Mutex<Vec<String>>>())
    };
    messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    vk::FALSE
}

fn has_layer(entry: &ash::Entry) -> bool {
    // SAFETY: the loader is open.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER))
}

/// The extensions of the loader or of a device.
pub(super) struct Extensions(Vec<vk::ExtensionProperties>);

impl Extensions {
    fn of(entry: &ash::Entry) -> Self {
        // SAFETY: the loader is open.
        Extensions(unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default())
    }

    pub fn of_device(instance: &Instance, device: vk::PhysicalDevice) -> Self {
        // SAFETY: the device belongs to the instance.
        Extensions(unsafe { instance.raw.enumerate_device_extension_properties(device) }.unwrap_or_default())
    }

    pub fn has(&self, name: &CStr) -> bool {
        self.0.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
    }
}
