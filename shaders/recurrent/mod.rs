//! The storage of recurrent state: what layers that do not attend keep of a sequence, on the CPU and on a device.
//!
//! A *slot* holds the state of all layers after some position of a sequence, in float32. A step names, for each sequence,
//! the slot to start from and the slots to write ([`Batch`](crate::op::Batch)). The start may be a slot that is written,
//! or one that stays as it is because it is a checkpoint. The storage does not know which slot belongs to which sequence.
//!
//! - `part`: the place of an op's values in a slot
//! - `cache`: the slots on the CPU
//! - `device`: the slots on a GPU
//! - `block`: the values that one task computes
//! - `columns`: how a GPU shares the columns of a state
//! - `run`: the rows of each sequence of a step
//! - `past_rows`: these and the rows before them
//! - `scenario`: steps with checkpoints, for the cases of ops with state

mod block;
mod cache;
mod columns;
mod device;
mod part;
mod past_rows;
mod run;
pub(crate) mod scenario;

pub use block::StateBlock;
pub use cache::StateCache;
pub(crate) use columns::{GROUP_COLUMNS, column_slices};
pub use device::DeviceStates;
pub use part::{NO_SLOT, StatePart};
pub(crate) use past_rows::{PastRows, TASK_CHANNELS};
pub use run::StateRun;
