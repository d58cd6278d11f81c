//! A server that is a child process.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::config_file::Transport;
use super::first_output::{FirstOutput, Observed};
use super::process_group::{self, ProcessGroups};

/// How long a server may take to end by itself, and again when it is asked to.
const GRACE: Duration = Duration::from_secs(1);

/// Lines of standard error that are kept.
const KEPT_LINES: usize = 8;

/// Most bytes of such a line.
const LINE_BYTES: u64 = 400;

/// A running server. Dropping it ends the server and all that it has started.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// The number of its process, which is also that of its group.
    leader: u32,
    groups: ProcessGroups,
    first_output: FirstOutput,
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

/// The streams by which messages come and go.
pub type Streams = (Observed<ChildStdout>, ChildStdin);

impl ServerProcess {
    /// Starts a server. Variables of `hidden` are not passed to it. `None` for one that is no process.
    ///
    /// # Errors
    /// The system's error when the program cannot be started.
    pub fn spawn(
        transport: &Transport,
        hidden: &[String],
        groups: &ProcessGroups,
    ) -> io::Result<Option<(Self, Streams)>> {
        let Transport::Process { command, args, env, cwd } = transport else { return Ok(None) };
        let mut program = Command::new(command);
        hidden.iter().for_each(|name| {
            program.env_remove(name);
        });
        program.args(args).envs(env).kill_on_drop(true);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = cwd {
            program.current_dir(cwd);
        }
        ProcessGroups::prepare(&mut program);
        let mut child = program.spawn()?;
        let missing = || io::Error::other("a stream of the process is missing");
        let leader = child.id().ok_or_else(missing)?;
        groups.add(leader);
        let (input, output) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let reader = tokio::spawn(keep_lines(child.stderr.take().ok_or_else(missing)?, lines.clone()));
        let first_output = FirstOutput::default();
        let output = Observed::new(output, first_output.clone());
        let process = ServerProcess { child, leader, groups: groups.clone(), first_output, lines, reader };
        Ok(Some((process, (output, input))))
    }

    /// The first line of its standard output, if that is no message.
    pub fn stray_line(&self) -> Option<String> {
        self.first_output.stray_line()
    }

    /// The last lines of its standard error, once it has ended or no longer writes.
    pub async fn last_lines(&mut self) -> Vec<String> {
        // The end of the process and that of its output are noticed in any order.
        let _ = tokio::time::timeout(Duration::from_millis(200), &mut self.reader).await;
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits for its end after its standard input was closed. If it does not end, it is asked to, and then it is killed.
    pub async fn stop(mut self) {
        if tokio::time::timeout(GRACE, self.child.wait()).await.is_err() {
            process_group::ask_to_end(self.leader);
            let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.reader.abort();
        self.groups.end(self.leader);
    }
}

/// Keeps the last lines of standard error, which must be read, or the server would wait for it.
async fn keep_lines(errors: ChildStderr, lines: Arc<Mutex<VecDeque<String>>>) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    // A longer line counts as several.
    while let Ok(1..) = (&mut errors).take(LINE_BYTES).read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push_back(text);
            if lines.len() > KEPT_LINES {
                lines.pop_front();
            }
        }
    }
}
