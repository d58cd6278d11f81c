//! Prometheus' text: who collects, who keeps house, and what `/metrics` answers.
//!
//! A recorded value goes into a list without a lock; something has to move the lists into buckets, or they would grow
//! until the next scrape, and make it slow. A thread of its own does, a few times a second.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::gauge;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::catalogue::{
    BUILD_INFO, KV_BLOCKS_TOTAL, Kind, METRICS, PROCESS_RESIDENT_MEMORY, PROCESS_START_TIME, describe,
};
use super::vllm;

/// Between two moves of recorded values into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Whose names `/metrics` uses beside our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Nobody's.
    #[default]
    None,
    /// Those of vLLM, which autoscalers, gateways and dashboards scrape.
    Vllm,
}

/// Why metrics are not recorded.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The table of metrics has one that the exporter cannot take.
    #[error("the metrics' buckets are not usable")]
    Buckets(#[from] BuildError),
    /// Only one recorder can be.
    #[error("this process records its metrics elsewhere already")]
    Taken,
    /// No thread for the upkeep.
    #[error("the thread that keeps the metrics cannot be started")]
    Thread(#[source] std::io::Error),
}

/// What was recorded, to be rendered. Clones are cheap and show the same.
#[derive(Debug, Clone)]
pub struct Exposition {
    handle: Arc<PrometheusHandle>,
    compat: Compat,
}

impl Exposition {
    /// Makes the process's recorder. Handles that were made before record nothing.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn install(compat: Compat) -> Result<Self, InstallError> {
        let (recorder, exposition) = Self::new(compat)?;
        metrics::set_global_recorder(recorder).map_err(|_| InstallError::Taken)?;
        exposition.start();
        exposition.spawn_upkeep().map_err(InstallError::Thread)?;
        Ok(exposition)
    }

    /// A recorder for the caller to install, and what it records.
    ///
    /// # Errors
    /// When a metric has no bucket.
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

    /// Records the facts of the process, and tells the recorder what every metric means.
    pub fn start(&self) {
        describe();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        gauge!(PROCESS_START_TIME).set(now.as_secs_f64());
        measure_process();
    }

    /// Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = untyped(&self.handle.render(), KV_BLOCKS_TOTAL);
        if self.compat == Compat::Vllm {
            vllm::append_aliases(&mut text);
        }
        text
    }

    /// Moves what was recorded into buckets.
    pub fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Keeps house until the last handle is gone.
    fn spawn_upkeep(&self) -> std::io::Result<()> {
        let handle = Arc::downgrade(&self.handle);
        thread::Builder::new().name("cuelight-metrics".into()).spawn(move || keep_house(&handle))?;
        Ok(())
    }
}

fn keep_house(handle: &Weak<PrometheusHandle>) {
    loop {
        thread::sleep(UPKEEP_INTERVAL);
        let Some(handle) = handle.upgrade() else { return };
        handle.run_upkeep();
        measure_process();
    }
}

/// Takes a gauge's type away. The name that operators expect for a number of blocks ends in `_total`, which linters
/// reserve for counters.
fn untyped(text: &str, name: &str) -> String {
    text.replacen(&format!("# TYPE {name} gauge"), &format!("# TYPE {name} untyped"), 1)
}

fn measure_process() {
    if let Some(bytes) = resident_bytes() {
        gauge!(PROCESS_RESIDENT_MEMORY).set(bytes as f64);
    }
}

/// Memory of this process that is in RAM, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
