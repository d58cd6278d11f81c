//! Models from registries that speak Ollama's protocol, named `ollama://NAME:TAG`.
//!
//! - [`name`]: the names
//! - [`manifest`]: the layers of a model
//! - [`registry`], [`blob`]: downloads a manifest, and the data of its layers
//! - [`store`]: the models on this machine, in Ollama's layout
//! - [`parameters`]: what the publisher recommends, for the engine
//! - [`locate`]: finds or downloads a model

mod blob;
mod locate;
mod manifest;
mod name;
mod parameters;
mod registry;
mod store;

pub use self::name::OllamaName;
pub use self::parameters::Published;
pub use self::store::{OllamaStore, StoredModel};
