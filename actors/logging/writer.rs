//! Writes lines to standard error from a thread of their own.
//!
//! Standard error may be closed, on a full disk, or a pipe that is not read. The threads that log must not wait for it or
//! panic: they put lines into a bounded queue. A line that does not fit, or cannot be written, is lost and counted.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::core::printable::printable;

/// Lines that may wait to be written.
const QUEUED_LINES: usize = 8192;

/// How long the end of the process waits for the lines that are still queued.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of lines that this process has lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The writer of this process, once logging is started.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// An entry of the queue.
enum Entry {
    Line(Vec<u8>),
    /// All lines before this entry are written when the sender is dropped.
    Flush(SyncSender<()>),
}

/// Queues lines for the log thread. Clones share the queue.
#[derive(Clone)]
pub(super) struct LogWriter {
    queue: SyncSender<Entry>,
}

impl LogWriter {
    /// Starts a thread that writes to `output`. Without a thread, every line is lost.
    pub fn start(output: impl Write + Send + 'static) -> Self {
        let (queue, entries) = sync_channel(QUEUED_LINES);
        // Fails only when the system has no more threads. The queue is closed then.
        let _ = thread::Builder::new().name("cuelight-log".into()).spawn(move || write_lines(output, &entries));
        LogWriter { queue }
    }

    /// The writer of this process, which writes to standard error.
    pub fn of_process() -> &'static Self {
        WRITER.get_or_init(|| Self::start(io::stderr()))
    }

    fn line(&self, text: Vec<u8>) {
        if self.queue.try_send(Entry::Line(text)).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the queued lines are written, at most [`FLUSH_TIMEOUT`].
    pub fn flush(&self) {
        let (done, written) = sync_channel(0);
        if self.queue.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes entries until all senders are gone.
fn write_lines(mut output: impl Write, entries: &Receiver<Entry>) {
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
            Entry::Flush(done) => drop(done),
        }
    }
}

/// A line that is queued when it is complete, which is when this is dropped.
pub(super) struct Line<'a> {
    writer: &'a LogWriter,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.writer.line(std::mem::take(&mut self.text));
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { writer: self, text: Vec::new() }
    }
}

/// Writes a line of text to standard error. Never waits and never fails.
pub(super) fn line(line: &str) {
    LogWriter::of_process().line(format!("{}\n", printable(line)).into_bytes());
}

/// Waits for a short time until all lines are written. Called before the process ends.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

/// Number of lines that this process could not write.
#[must_use]
pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use super::*;

    /// Serialises the tests, which share the count of lost lines.
    static COUNT: Mutex<()> = Mutex::new(());

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An output that blocks until the channel is closed.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An output on a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_whole_and_in_order() {
        let memory = Memory::default();
        let writer = LogWriter::start(memory.clone());
        for number in 0..100 {
            let mut line = writer.make_writer();
            write!(line, "line ").unwrap();
            writeln!(line, "{number}").unwrap();
        }
        writer.flush();
        let expected: String = (0..100).map(|number| format!("line {number}\n")).collect();
        assert_eq!(String::from_utf8(memory.0.lock().unwrap().clone()).unwrap(), expected);
    }

    #[test]
    fn an_output_that_is_not_read_delays_no_thread_and_lost_lines_are_counted() {
        let _count = COUNT.lock().unwrap();
        let (release, stuck) = std::sync::mpsc::channel();
        let writer = LogWriter::start(Stuck(stuck));
        let (before, began) = (lost_lines(), Instant::now());
        for _ in 0..QUEUED_LINES + 100 {
            writer.line(b"a line\n".to_vec());
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        // The thread may have taken one line out of the queue.
        assert!((99..=100).contains(&(lost_lines() - before)), "{}", lost_lines() - before);
        drop(release);
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_the_next_one_is_tried() {
        let _count = COUNT.lock().unwrap();
        let writer = LogWriter::start(Full);
        let before = lost_lines();
        writer.line(b"one\n".to_vec());
        writer.line(b"two\n".to_vec());
        writer.flush();
        assert_eq!(lost_lines() - before, 2);
    }
}
