//! One process that renders, as its parent sees it. Dropping it ends it.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{WorkerProgram, protocol};
use crate::format::chat_template::cancellation::Cancellation;
use crate::format::chat_template::error::ChatTemplateError;

/// How often a waiting parent looks whether the caller still wants the reply.
const POLL: Duration = Duration::from_millis(20);

/// A process that has compiled one template.
pub(super) struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    /// Starts a process and lets it compile the template of `definition`.
    pub(super) fn start(program: &WorkerProgram, definition: &[u8]) -> Result<Self, ChatTemplateError> {
        let mut process = Self::spawn(program).map_err(|error| {
            ChatTemplateError::Worker(format!("{} cannot be started: {error}", program.program.display()))
        })?;
        process.call(program, definition, &Cancellation::default())?;
        Ok(process)
    }

    fn spawn(program: &WorkerProgram) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(POLL))?;
        socket.set_write_timeout(Some(POLL))?;
        let child = Command::new(&program.program)
            .args(&program.arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal is for the parent, which may still answer requests.
            .process_group(0)
            .spawn()?;
        Ok(Process { child, socket })
    }

    /// Whether the process can take a request.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a request and waits for the reply. After an error other than the template's own the process must not be used again.
    pub(super) fn call(
        &mut self,
        program: &WorkerProgram,
        request: &[u8],
        cancellation: &Cancellation,
    ) -> Result<String, ChatTemplateError> {
        let mut patient = Patient { socket: &self.socket, deadline: Instant::now() + program.timeout, cancellation };
        let sent = protocol::write(&mut patient, request);
        match sent.and_then(|()| protocol::read(&mut patient)) {
            Ok(Some(reply)) => protocol::decode_reply(reply),
            Err(_) if cancellation.is_cancelled() => Err(ChatTemplateError::Cancelled),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(over_time(program)),
            Ok(None) | Err(_) => Err(self.cause_of_death(program)),
        }
    }

    /// Why the process has ended without a reply.
    fn cause_of_death(&mut self, program: &WorkerProgram) -> ChatTemplateError {
        // Without effect when it has ended by itself.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => match status.signal() {
                Some(libc::SIGXCPU) => over_time(program),
                Some(_) => over_memory(program),
                None => ChatTemplateError::Worker(format!("it ended with {status}")),
            },
            Err(error) => ChatTemplateError::Worker(error.to_string()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, or ends at once; no state is lost with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn over_time(program: &WorkerProgram) -> ChatTemplateError {
    ChatTemplateError::Limit(format!("it takes longer than {:?}", program.timeout))
}

fn over_memory(program: &WorkerProgram) -> ChatTemplateError {
    let mebibytes = program.memory_bytes >> 20;
    ChatTemplateError::Limit(format!("it needs more than {mebibytes} MiB of memory, or nests its values too deeply"))
}

/// A socket that waits until a deadline or a cancellation.
struct Patient<'a> {
    socket: &'a UnixStream,
    deadline: Instant,
    cancellation: &'a Cancellation,
}

impl Patient<'_> {
    fn retry<T>(&mut self, mut attempt: impl FnMut(&mut &UnixStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if self.cancellation.is_cancelled() || Instant::now() >= self.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(|socket| socket.read(buffer))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
