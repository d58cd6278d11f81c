//! The sources of models: a path, the shared Hugging Face cache, the Hugging Face Hub, a registry with Ollama's protocol, or the
//! built-in demo.
//!
//! [`Hub::locate`] turns the model argument of a command into a file or directory on disk. All functions here block: commands call
//! them before any actor is started. Each download attempt runs on its own small tokio runtime, so that ending an attempt also
//! stops everything that it has in flight.
//!
//! [`HubStore`] puts downloaded models into the models directory of a server.

mod attempts;
pub mod cache;
mod demo;
mod directory;
mod download;
mod error;
pub mod gguf_names;
mod locate;
pub mod ollama;
mod probe;
mod progress;
pub mod projector;
pub mod reference;
mod snapshot;
mod sources;
mod store;
mod transfer;

pub use self::error::HubError;
pub use self::progress::Progress;
pub use self::sources::Hub;
pub use self::store::HubStore;
