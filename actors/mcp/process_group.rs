//! The groups of processes that servers run in, so that all of them can be ended at once.
//!
//! A server is often a script that starts another program. Its group has both. It is also not the group of the terminal, whose
//! Ctrl-C is for this program and must not end a server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The groups that may still have processes.
#[derive(Debug, Clone, Default)]
pub struct ProcessGroups(Arc<Mutex<BTreeSet<u32>>>);

impl ProcessGroups {
    /// Makes a command start a group of its own.
    pub(super) fn prepare(command: &mut tokio::process::Command) {
        #[cfg(unix)]
        command.process_group(0);
        #[cfg(not(unix))]
        let _ = command;
    }

    /// Adds a group.
    pub(super) fn add(&self, leader: u32) {
        self.lock().insert(leader);
    }

    /// Ends the processes of a group.
    pub(super) fn end(&self, leader: u32) {
        if self.lock().remove(&leader) {
            kill(leader);
        }
    }

    /// Ends the processes of all groups, for a process that is about to end.
    pub fn end_all(&self) {
        for leader in std::mem::take(&mut *self.lock()) {
            kill(leader);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the processes of a group to end.
#[cfg(unix)]
pub(super) fn ask_to_end(leader: u32) {
    signal(leader, rustix::process::Signal::TERM);
}

/// Windows has no such request.
#[cfg(not(unix))]
pub(super) fn ask_to_end(_: u32) {}

#[cfg(unix)]
fn kill(leader: u32) {
    signal(leader, rustix::process::Signal::KILL);
}

/// Windows has no groups. What a server has started must notice the end of its standard input.
#[cfg(not(unix))]
fn kill(_: u32) {}

#[cfg(unix)]
fn signal(leader: u32, signal: rustix::process::Signal) {
    if let Some(leader) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        // The group may have ended.
        let _ = rustix::process::kill_process_group(leader, signal);
    }
}
