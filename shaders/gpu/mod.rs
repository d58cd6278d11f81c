//! How an op describes its work on a GPU: the shaders to run, as data.
//!
//! - [`module`]: the compiled shaders
//! - `limits`: what a device can do
//! - `region`: ranges of device memory
//! - `push`: push constants
//! - [`step`]: the layout of a step's rows in device memory
//! - [`weight`]: the layout of weights in device memory
//! - `dispatch`: a [`Dispatch`], and the arguments from which an op makes dispatches
//!
//! An op states what it runs, what that reads and what it writes; it makes no calls. The backend does the recording,
//! the barriers and the memory, in the same way for every op.
//!
//! Dispatches are made for a *bucket*: a maximum number of rows. The shaders read the actual number of rows and their
//! positions on the device, so that commands recorded once serve every step of the bucket.

mod dispatch;
mod limits;
pub mod module;
mod push;
mod region;
pub mod step;
pub mod weight;

pub use dispatch::{DeviceValue, Dispatch, GpuArgs, RowCount};
pub use limits::DeviceLimits;
pub use module::Module;
pub use push::Push;
pub(crate) use push::word;
pub use region::Region;
pub use step::StepLayout;
pub use weight::DeviceWeight;
