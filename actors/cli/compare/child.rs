//! Processes that do not outlive the comparison, and their last words.
//!
//! A child is killed when what holds it is dropped: at an error, at Ctrl-C, at the end.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// Lines of standard error that are kept.
const LAST_WORDS: usize = 5;

/// From a connection that breaks off to the end of the process that held it.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// Why a child process gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {program}")]
    NotStarted {
        /// What was to be started.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It ended when it should not, or in another way.
    #[error("{program} ended with {status}{last_words}")]
    Ended {
        /// What was started.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said last.
        last_words: LastWords,
    },
}

/// The end of what a process wrote to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastWords(VecDeque<String>);

impl LastWords {
    fn of(text: &str) -> Self {
        let mut words = LastWords::default();
        text.lines().for_each(|line| words.push(line));
        words
    }

    fn push(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.0.len() == LAST_WORDS {
            self.0.pop_front();
        }
        self.0.push_back(line.trim_end().to_owned());
    }
}

impl std::fmt::Display for LastWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.is_empty() {
            true => f.write_str(" and said nothing"),
            false => self.0.iter().try_fold(f.write_str("; its last lines:")?, |(), line| write!(f, "\n    {line}")),
        }
    }
}

fn program_of(command: &Command) -> String {
    command.as_std().get_program().to_string_lossy().into_owned()
}

/// Runs a command to its end; returns what it wrote to standard output.
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
    let last_words = LastWords::of(&String::from_utf8_lossy(&output.stderr));
    Err(ChildError::Ended { program, status: output.status, last_words })
}

/// A process that runs until this is dropped.
pub struct Running {
    program: String,
    child: Child,
    said: Arc<Mutex<LastWords>>,
    listener: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a command.
    ///
    /// # Errors
    /// [`ChildError::NotStarted`].
    pub fn start(mut command: Command) -> Result<Self, ChildError> {
        let program = program_of(&command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|source| ChildError::NotStarted { program: program.clone(), source })?;
        let said = Arc::new(Mutex::new(LastWords::default()));
        let listener = child.stderr.take().map(|stderr| tokio::spawn(listen(stderr, said.clone())));
        Ok(Running { program, child, said, listener })
    }

    /// Its number; `None` when it has ended.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Gives a process whose connections broke off the moment it takes to have ended.
    pub async fn settle(&mut self) {
        // Whether it ended is asked of `check`.
        let _ = tokio::time::timeout(ENDS_WITHIN, self.child.wait()).await;
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// [`ChildError::Ended`].
    pub async fn check(&mut self) -> Result<(), ChildError> {
        // A process whose state cannot be asked for is found out when nobody answers.
        let Ok(Some(status)) = self.child.try_wait() else { return Ok(()) };
        if let Some(listener) = self.listener.take() {
            // Its last words end where it ended; the listener does not panic.
            let _ = listener.await;
        }
        let last_words = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(ChildError::Ended { program: self.program.clone(), status, last_words })
    }

    /// Ends it, and waits until its memory and its port are free again.
    pub async fn stop(mut self) {
        // It may have ended already, which is just as well.
        let _ = self.child.kill().await;
    }
}

async fn listen(stderr: ChildStderr, said: Arc<Mutex<LastWords>>) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        said.lock().unwrap_or_else(PoisonError::into_inner).push(&String::from_utf8_lossy(&line));
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn the_last_lines_of_a_failure_are_told() {
        let error = output(shell("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/bin/sh ended with exit status: 3; its last lines:\n    line 3\n"), "{text}");
        assert!(text.ends_with("line 7") && !text.contains("line 2"), "{text}");
        assert!(output(shell("exit 1")).await.unwrap_err().to_string().ends_with("said nothing"));
        assert_eq!(output(shell("echo out; echo err >&2")).await.unwrap(), b"out\n");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let error = output(Command::new("/nowhere/llama-bench")).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot start /nowhere/llama-bench");
    }

    #[tokio::test]
    async fn a_server_that_ends_by_itself_is_noticed_with_its_last_words() {
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
    async fn a_child_that_is_dropped_is_killed() {
        let is_alive = |pid: u32| {
            let mut kill = std::process::Command::new("kill");
            kill.args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
        };
        let running = Running::start(shell("exec sleep 600")).unwrap();
        let pid = running.id().unwrap();
        assert!(is_alive(pid));
        drop(running);
        // Dropping sends the signal; the runtime collects the process a moment later.
        for _ in 0..500 {
            if !is_alive(pid) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{pid} still runs");
    }
}
