//! Traces: the steps of each actor and the phases of each request, written to a file that shows them side by side
//! ([`chrome`]) or sent to a collector as spans ([`otlp`]).
//!
//! Actors hold a [`Tracer`] and record events with one call each. A record goes through a bounded channel to the thread of
//! each [`Sink`], which does all further work. When a sink cannot keep up, records are dropped and counted, and no actor
//! waits. Without a sink a call costs one branch.

pub mod chrome;
mod collector_client;
pub mod otlp;
mod record;
mod request;
mod steps;
mod tracer;

use std::io;
use std::path::{Path, PathBuf};

use self::chrome::ChromeTrace;
use self::otlp::{CollectorError, SpanExport};
pub use self::record::{PipelineId, Record, Sink, StepShape, TraceEvent};
pub(crate) use self::request::log_ended_request;
pub(crate) use self::tracer::SchedulerTrace;
pub use self::tracer::Tracer;
pub use crate::core::request_context;

/// Why tracing could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace file cannot be created.
    #[error("the trace file {} cannot be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Spans cannot be sent to the collector.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// A thread cannot be started.
    #[error("the thread that writes traces cannot be started")]
    Thread(#[from] io::Error),
}

/// Starts tracing to a file, a collector, or both. With neither, the tracer is off.
///
/// # Errors
/// [`TraceError`] when a sink cannot be started.
pub fn start(file: Option<&Path>, collector: Option<&str>) -> Result<Tracer, TraceError> {
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    if let Some(path) = file {
        let trace = ChromeTrace::create(path).map_err(|source| TraceError::File { path: path.to_owned(), source })?;
        sinks.push(Box::new(trace));
    }
    if let Some(url) = collector {
        sinks.push(Box::new(SpanExport::start(url)?));
    }
    Ok(Tracer::start(sinks)?)
}
