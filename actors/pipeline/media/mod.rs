//! Media of prompts: the encoder that computes their rows, and what is kept of them.
//!
//! A model that takes media has one encoder for all of its replicas. [`ModelMedia`] is the handle: it prepares media, asks the
//! encoder for their rows, and keeps the rows of recent media, which the later turns of a conversation send again.
//!
//! - [`model_media`]: the handle
//! - [`keeper`]: starts the encoder, and another one when it is lost
//! - [`encoder`], [`thread`]: the actor, and the thread on which it computes
//! - [`cache`]: the rows of recent media

mod cache;
mod encoder;
mod keeper;
mod model_media;
mod thread;

pub use self::cache::{CachedMedia, MediaId};
pub use self::keeper::EncoderOptions;
pub use self::model_media::ModelMedia;
pub use super::messages::EncodeError;
