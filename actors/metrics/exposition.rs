//! The metrics recorder and the text that `/metrics` returns.
//!
//! A recorded histogram value is appended to a lock-free list. A thread moves these lists into buckets a few times per
//! second. Otherwise they would grow until the next scrape and make it slow.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{counter, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::catalogue::{
    BUILD_INFO, CONNECTIONS_OPEN, CONNECTIONS_REFUSED, KV_BLOCKS_TOTAL, Kind, LOG_LINES_LOST, METRICS,
    PROCESS_RESIDENT_MEMORY, PROCESS_START_TIME, describe,
};
use super::vllm;
use crate::logging::lost_lines;

/// Interval at which recorded values are moved into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The time in seconds since 1970.
fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Additional metric names on `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// None.
    #[default]
    None,
    /// The names of vLLM, for autoscalers, gateways and dashboards that use them.
    Vllm,
}

/// Why the recorder could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The exporter does not accept the buckets of a metric.
    #[error("the metrics' buckets are not usable")]
    Buckets(#[from] BuildError),
    /// A recorder is installed already. A process can have only one.
    #[error("this process records its metrics elsewhere already")]
    Taken,
    /// The upkeep thread cannot be started.
    #[error("the metrics upkeep thread cannot be started")]
    Thread(#[source] std::io::Error),
}

/// Renders the recorded metrics. Clones are cheap and share the recorder.
#[derive(Debug, Clone)]
pub struct Exposition {
    handle: Arc<PrometheusHandle>,
    compat: Compat,
}

impl Exposition {
    /// Installs the recorder of the process. Handles that were created before record nothing.
    ///
    /// # Errors
    /// [`InstallError`] when a recorder is installed already, or this one cannot be built or started.
    pub fn install(compat: Compat) -> Result<Self, InstallError> {
        let (recorder, exposition) = Self::new(compat)?;
        metrics::set_global_recorder(recorder).map_err(|_| InstallError::Taken)?;
        exposition.start();
        exposition.spawn_upkeep().map_err(InstallError::Thread)?;
        Ok(exposition)
    }

    /// A recorder for the caller to install, and the exposition of its metrics.
    ///
    /// # Errors
    /// When the buckets of a metric are not accepted.
    pub fn new(compat: Compat) -> Result<(PrometheusRecorder, Self), BuildError> {
        let mut builder = PrometheusBuilder::new();
        for metric in METRICS {
            if let Kind::Histogram(edges) = metric.kind {
                builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), edges)?;
            }
        }
        let recorder = builder.build_recorder();
        let handle = Arc::new(recorder.handle());
        Ok((recorder, Exposition { handle, compat }))
    }

    /// Registers the help texts and records the metrics of the process.
    pub fn start(&self) {
        describe();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        gauge!(PROCESS_START_TIME).set(unix_seconds());
        gauge!(CONNECTIONS_OPEN).set(0.0);
        counter!(CONNECTIONS_REFUSED).increment(0);
        measure_process();
    }

    /// The metrics in Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = untyped(&self.handle.render(), KV_BLOCKS_TOTAL);
        if self.compat == Compat::Vllm {
            vllm::append_aliases(&mut text, unix_seconds());
        }
        text
    }

    /// Moves recorded values into buckets.
    pub fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Starts the upkeep thread. It ends when the last handle is dropped.
    fn spawn_upkeep(&self) -> std::io::Result<()> {
        let handle = Arc::downgrade(&self.handle);
        thread::Builder::new().name("cuelight-metrics".into()).spawn(move || upkeep(&handle))?;
        Ok(())
    }
}

fn upkeep(handle: &Weak<PrometheusHandle>) {
    loop {
        thread::sleep(UPKEEP_INTERVAL);
        let Some(handle) = handle.upgrade() else { return };
        handle.run_upkeep();
        measure_process();
    }
}

/// Changes the type of a gauge to `untyped`. Its name ends in `_total`, as operators expect for the number of blocks, but
/// linters reserve that suffix for counters.
fn untyped(text: &str, name: &str) -> String {
    text.replacen(&format!("# TYPE {name} gauge"), &format!("# TYPE {name} untyped"), 1)
}

fn measure_process() {
    counter!(LOG_LINES_LOST).absolute(lost_lines());
    if let Some(bytes) = resident_bytes() {
        gauge!(PROCESS_RESIDENT_MEMORY).set(bytes as f64);
    }
}

/// Resident memory of the process, where the system reports it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
