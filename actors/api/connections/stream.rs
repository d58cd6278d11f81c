//! A connection whose reads and writes have time limits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::{Activity, Phase};
use super::options::ConnectionOptions;

/// A TCP stream that fails when its client is silent between requests, or does not read its response.
pub(super) struct TimedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
    options: ConnectionOptions,
    read_timer: Timer,
    write_timer: Timer,
}

impl TimedStream {
    pub fn new(stream: TcpStream, activity: Arc<Activity>, options: ConnectionOptions) -> Self {
        TimedStream { stream, activity, options, read_timer: Timer::default(), write_timer: Timer::default() }
    }

    /// When a read fails that has received nothing. While a request is served, its handler has its own limits.
    fn read_deadline(&self) -> Option<Instant> {
        match self.activity.phase() {
            Phase::Idle { since } => Some(after(since, self.options.idle_timeout)),
            Phase::Head { since } => Some(after(since, self.options.header_timeout)),
            Phase::Serving => None,
        }
    }

    /// Passes on the result of a write. One that has been pending for too long fails.
    fn limit_write<T>(&mut self, result: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_timer.stop();
            return result;
        }
        let deadline = self.write_timer.deadline().unwrap_or_else(|| Instant::now() + self.options.stall_timeout);
        ready!(self.write_timer.poll(deadline, cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its response")))
    }
}

fn after(since: std::time::Instant, timeout: Duration) -> Instant {
    Instant::from_std(since) + timeout
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if result.is_ready() {
            if buf.filled().len() > filled {
                self.activity.received();
            }
            self.read_timer.stop();
            return result;
        }
        self.activity.wake_when_idle(cx.waker());
        let Some(deadline) = self.read_deadline() else { return Poll::Pending };
        ready!(self.read_timer.poll(deadline, cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client sends no request")))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit_write(result, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.limit_write(result, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limit_write(result, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limit_write(result, cx)
    }
}

/// A timer that is created when it is first needed.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    is_running: bool,
}

impl Timer {
    fn stop(&mut self) {
        self.is_running = false;
    }

    /// The deadline while it runs.
    fn deadline(&self) -> Option<Instant> {
        self.sleep.as_ref().filter(|_| self.is_running).map(|sleep| sleep.deadline())
    }

    fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        self.is_running = true;
        sleep.as_mut().poll(cx)
    }
}
