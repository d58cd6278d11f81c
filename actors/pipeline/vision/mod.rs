//! Images of prompts: the encoder that computes their rows, and what is kept of them.
//!
//! A model that takes images has one encoder for all of its replicas. [`ModelImages`] is the handle: it prepares images, asks the
//! encoder for their rows, and keeps the rows of recent images, which the later turns of a conversation send again.
//!
//! - [`model_images`]: the handle
//! - [`keeper`]: starts the encoder, and another one when it is lost
//! - [`encoder`], [`thread`]: the actor, and the thread on which it computes
//! - [`cache`]: the rows of recent images

mod cache;
mod encoder;
mod keeper;
mod model_images;
mod thread;

pub use self::cache::{CachedImage, ImageId};
pub use self::keeper::EncoderOptions;
pub use self::model_images::ModelImages;
pub use super::messages::EncodeError;
