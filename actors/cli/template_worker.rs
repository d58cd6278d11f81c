//! `cuelight template-worker`: the process that renders the chat template of one model. It is started by Cuelight itself and
//! not listed in the help.
//!
//! It limits its own memory and, for each request, its time on the CPU, so that it ends even when its parent has ended first.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cuelight_engine::format::chat_template::worker::WorkerProgram;

/// The name of the subcommand.
pub const SUBCOMMAND: &str = "template-worker";

/// This program as the process that renders. `None` when its file is not known.
#[must_use]
pub fn program(timeout: Duration, memory_bytes: u64) -> Option<WorkerProgram> {
    let arguments = [SUBCOMMAND.to_owned(), memory_bytes.to_string(), timeout.as_secs().to_string()];
    Some(WorkerProgram {
        program: this_program()?,
        arguments: arguments.map(OsString::from).to_vec(),
        timeout,
        memory_bytes,
    })
}

/// On Linux a name that stays valid when the file is replaced.
fn this_program() -> Option<PathBuf> {
    if cfg!(target_os = "linux") { Some("/proc/self/exe".into()) } else { std::env::current_exe().ok() }
}

/// Runs the process that renders. `arguments` are those after the subcommand.
#[cfg(unix)]
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let numbers: Option<Vec<u64>> = arguments.iter().map(|text| text.to_str()?.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[memory_bytes, cpu_seconds]) if serve(memory_bytes, cpu_seconds).is_ok() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Without Unix sockets there is no such process.
#[cfg(not(unix))]
#[must_use]
pub fn main(_arguments: &[OsString]) -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(unix)]
fn serve(memory_bytes: u64, cpu_seconds: u64) -> std::io::Result<()> {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use cuelight_engine::format::chat_template::worker::{limits, serve};

    let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    limits::limit_memory(memory_bytes)?;
    let thread = std::thread::Builder::new().stack_size(limits::STACK_BYTES).spawn(move || {
        // Without this limit, the parent's timeout remains.
        serve(&mut stream, || drop(limits::limit_cpu_time(Duration::from_secs(cpu_seconds))))
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}
