//! Child processes of the comparison, and the end of their standard error.
//!
//! A child is killed when its handle is dropped: after an error, after Ctrl-C, and at the end.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// Lines of standard error to keep.
const LAST_LINES: usize = 5;

/// Maximum time from a closed connection to the exit of the process.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a child process failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {program}")]
    NotStarted {
        /// The program.
        program: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It exited unexpectedly or with a failure.
    #[error("{program} ended with {status}{last_lines}")]
    Ended {
        /// The program.
        program: String,
        /// The exit status.
        status: ExitStatus,
        /// The end of its standard error.
        last_lines: LastLines,
    },
}

/// The end of what a process wrote to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastLines(VecDeque<String>);

impl LastLines {
    fn of(text: &str) -> Self {
        let mut last = LastLines::default();
        text.lines().for_each(|line| last.push(line));
        last
    }

    fn push(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.0.len() == LAST_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.trim_end().to_owned());
    }
}

impl std::fmt::Display for LastLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.is_empty() {
            true => f.write_str(" and printed nothing"),
            false => self.0.iter().try_fold(f.write_str("; its last lines:")?, |(), line| write!(f, "\n    {line}")),
        }
    }
}

fn program_of(command: &Command) -> String {
    command.as_std().get_program().to_string_lossy().into_owned()
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// [`ChildError`] when it cannot be started, or fails.
pub async fn output(mut command: Command) -> Result<Vec<u8>, ChildError> {
    let program = program_of(&command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await;
    let output = output.map_err(|source| ChildError::NotStarted { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let last_lines = LastLines::of(&String::from_utf8_lossy(&output.stderr));
    Err(ChildError::Ended { program, status: output.status, last_lines })
}

/// A process that runs until this is dropped.
pub struct Running {
    program: String,
    child: Child,
    stderr: Arc<Mutex<LastLines>>,
    collector: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a command.
    ///
    /// # Errors
    /// [`ChildError::NotStarted`] when the program cannot be run.
    pub fn start(mut command: Command) -> Result<Self, ChildError> {
        let program = program_of(&command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|source| ChildError::NotStarted { program: program.clone(), source })?;
        let collected = Arc::new(Mutex::new(LastLines::default()));
        let collector = child.stderr.take().map(|stderr| tokio::spawn(collect(stderr, collected.clone())));
        Ok(Running { program, child, stderr: collected, collector })
    }

    /// The process id; `None` after it ended.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits a moment for the process to exit, after its connection closed.
    pub async fn wait_for_exit(&mut self) {
        // `check` reports whether it ended.
        let _ = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await;
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// [`ChildError::Ended`] with the end of its standard error.
    pub async fn check(&mut self) -> Result<(), ChildError> {
        // If the state is unknown, later requests to the process fail.
        let Ok(Some(status)) = self.child.try_wait() else { return Ok(()) };
        if let Some(collector) = self.collector.take() {
            // The collector reads to the end of standard error, and does not panic.
            let _ = collector.await;
        }
        let last_lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(ChildError::Ended { program: self.program.clone(), status, last_lines })
    }

    /// Kills the process and waits until its memory and its port are free.
    pub async fn stop(mut self) {
        // It may have ended already.
        let _ = self.child.kill().await;
    }
}

async fn collect(stderr: ChildStderr, lines_kept: Arc<Mutex<LastLines>>) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        lines_kept.lock().unwrap_or_else(PoisonError::into_inner).push(&String::from_utf8_lossy(&line));
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn an_error_contains_the_last_lines() {
        let error = output(shell("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/bin/sh ended with exit status: 3; its last lines:\n    line 3\n"), "{text}");
        assert!(text.ends_with("line 7") && !text.contains("line 2"), "{text}");
        assert!(output(shell("exit 1")).await.unwrap_err().to_string().ends_with("printed nothing"));
        assert_eq!(output(shell("echo out; echo err >&2")).await.unwrap(), b"out\n");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error = output(Command::new("/nowhere/llama-bench")).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot start /nowhere/llama-bench");
    }

    #[tokio::test]
    async fn an_unexpected_exit_is_reported_with_its_last_lines() {
        let mut running = Running::start(shell("echo no such model >&2; exit 1")).unwrap();
        let error = loop {
            match running.check().await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("no such model"), "{error}");
    }

    #[tokio::test]
    async fn a_dropped_child_is_killed() {
        let is_alive = |pid: u32| {
            let mut kill = std::process::Command::new("kill");
            kill.args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
        };
        let running = Running::start(shell("exec sleep 600")).unwrap();
        let pid = running.id().unwrap();
        assert!(is_alive(pid));
        drop(running);
        // Dropping sends the signal; the runtime reaps the process a moment later.
        for _ in 0..500 {
            if !is_alive(pid) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{pid} still runs");
    }
}
