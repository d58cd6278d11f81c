//! Renders templates in processes of their own.
//!
//! A template is a program from a model's file. Inside this process nothing bounds the memory and the stack that its values take:
//! one instruction can double a string, build a list that is its own square, or drop a value nested a million levels deep. A
//! process has such bounds, and can be ended at any instruction.
//!
//! - [`protocol`]: the messages between the two processes
//! - [`mod@serve`]: the process that renders
//! - [`limits`]: what it may use
//! - [`process`]: one such process, as its parent sees it
//! - [`pool`]: the processes of one template
//!
//! Without Unix sockets, templates are rendered in this process.

#[cfg(unix)]
pub mod limits;
#[cfg(unix)]
pub(super) mod pool;
#[cfg(unix)]
mod process;
mod protocol;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use serve::serve;

/// How to start a process that renders, and how much it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// The program. It calls [`serve()`] with the socket that is its standard input.
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<OsString>,
    /// The longest time for compiling the template or rendering one conversation.
    pub timeout: Duration,
    /// The memory that the program grants itself, for error messages.
    pub memory_bytes: u64,
}
