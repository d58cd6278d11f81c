//! Writes a file in Chrome's trace event format, for Perfetto or `chrome://tracing`.
//!
//! Each model is a process and its actors are the tracks. They show when the scheduler formed a step, the device computed
//! it, and the sampler sampled it, with arrows between them. When ops are measured, another track shows the ops of each
//! step. Requests are shown below as spans with their phases.
//!
//! The file is one JSON array. Viewers also accept it without its closing bracket, so a file that was cut off by a crash
//! can be opened.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use cuelight_engine::engine::StepId;
use cuelight_engine::profile::OpSpan;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::record::{PipelineId, Record, Sink, StepShape, TraceEvent};
use super::steps::{ComputedStep, DeviceSteps};
use crate::core::ended_request::EndedRequest;

/// Viewers cannot open larger files.
const MAX_BYTES: u64 = 1 << 30;

/// The tracks of a model.
const SCHEDULER: u64 = 1;
const DEVICE: u64 = 2;
const SAMPLER: u64 = 3;
const SUPERVISOR: u64 = 4;
/// Present only when ops are measured.
const OPS: u64 = 5;
/// Present only when experts are computed on the host: the segments that the device computes between expert jobs.
const SEGMENTS: u64 = 6;
/// Present only when experts are computed on the host.
const EXPERTS: u64 = 7;

/// Writes records as trace events.
pub struct ChromeTrace {
    file: BufWriter<File>,
    epoch: Instant,
    models: Vec<ModelTrack>,
    bytes: u64,
    /// Whether a write has failed. Nothing is written afterwards.
    failed: bool,
}

/// The state of a model in the trace.
struct ModelTrack {
    pipeline: PipelineId,
    steps: DeviceSteps,
    /// Whether a status span is open.
    has_status: bool,
    /// Optional tracks that have been declared.
    optional_tracks: Vec<u64>,
}

impl ChromeTrace {
    /// Creates the file, or truncates an existing one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        file.write_all(b"[")?;
        Ok(ChromeTrace { file, epoch: Instant::now(), models: Vec::new(), bytes: 1, failed: false })
    }

    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.epoch).as_nanos() as f64 / 1e3
    }

    fn write(&mut self, event: &Value) {
        let separator = if self.bytes > 1 { ",\n" } else { "\n" };
        let text = event.to_string();
        self.bytes += (separator.len() + text.len()) as u64;
        let written = self.file.write_all(separator.as_bytes()).and_then(|()| self.file.write_all(text.as_bytes()));
        self.check(written);
    }

    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::error!(%error, "the trace file cannot be written and ends here");
        }
    }

    /// The process id of the record's model, from 1. A new model is declared first.
    fn process(&mut self, record: &Record) -> usize {
        if let Some(index) = self.models.iter().position(|model| model.pipeline == record.pipeline) {
            return index + 1;
        }
        let model = ModelTrack {
            pipeline: record.pipeline.clone(),
            steps: DeviceSteps::default(),
            has_status: false,
            optional_tracks: Vec::new(),
        };
        self.models.push(model);
        let pid = self.models.len();
        let name = json!({ "name": format!("model {}", record.pipeline) });
        self.write(&json!({ "name": "process_name", "ph": "M", "pid": pid, "args": name }));
        for (tid, name) in
            [(SCHEDULER, "scheduler"), (DEVICE, "device"), (SAMPLER, "sampler"), (SUPERVISOR, "supervisor")]
        {
            self.declare_track(pid, tid, name, tid);
        }
        pid
    }

    /// Declares the name and the position of a track.
    fn declare_track(&mut self, pid: usize, tid: u64, name: &str, position: u64) {
        let name = json!({ "name": name });
        self.write(&json!({ "name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": name }));
        let order = json!({ "sort_index": position });
        self.write(&json!({ "name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": order }));
    }

    /// Declares an optional track next to the device's, if it is not declared yet.
    fn declare_optional_track(&mut self, pid: usize, tid: u64, name: &str) {
        if !self.models[pid - 1].optional_tracks.contains(&tid) {
            self.models[pid - 1].optional_tracks.push(tid);
            self.declare_track(pid, tid, name, DEVICE);
        }
    }

    fn step_formed(&mut self, pid: usize, step: StepId, from: Instant, to: Instant, shape: &StepShape) {
        self.span(pid, SCHEDULER, step, "form", (from, to), step_args(shape));
        self.flow(pid, SCHEDULER, step, "s", from);
        self.models[pid - 1].steps.formed(step, shape);
    }

    fn step_computed(&mut self, pid: usize, step: StepId, to: Instant) {
        let Some(ComputedStep { from, shape }) = self.models[pid - 1].steps.computed(step, to) else { return };
        self.span(pid, DEVICE, step, "compute", (from, to), step_args(&shape));
        self.flow(pid, DEVICE, step, "t", from);
    }

    /// Writes the ops of a step that ended at `to` and took `elapsed`.
    fn ops(&mut self, pid: usize, step: StepId, to: Instant, elapsed: Duration, ops: &[OpSpan]) {
        if ops.is_empty() {
            return;
        }
        self.declare_optional_track(pid, OPS, "ops");
        // `to` is when the report arrived, slightly after the end of the step.
        let began = self.micros(to) - elapsed.as_nanos() as f64 / 1e3;
        for OpSpan { op, start, elapsed, cost } in ops {
            let args = json!({
                "step": step.0, "layer": op.layer, "bytes": cost.bytes(), "operations": cost.operations(),
            });
            self.write(&json!({
                "name": op.kind(), "cat": "op", "ph": "X", "ts": began + start.as_nanos() as f64 / 1e3,
                "dur": elapsed.as_nanos() as f64 / 1e3, "pid": pid, "tid": OPS, "args": args,
            }));
        }
    }

    /// Writes a span of a step on a track.
    fn span(&mut self, pid: usize, tid: u64, step: StepId, name: &str, (from, to): (Instant, Instant), args: Value) {
        let (ts, end) = (self.micros(from), self.micros(to));
        self.write(&json!({
            "name": format!("{name} {}", step.0), "cat": "step", "ph": "X", "ts": ts, "dur": end - ts,
            "pid": pid, "tid": tid, "args": args,
        }));
    }

    /// Writes a point of the arrow from forming a step to computing and sampling it.
    fn flow(&mut self, pid: usize, tid: u64, step: StepId, phase: &str, at: Instant) {
        let ts = self.micros(at);
        self.write(&json!({
            "name": "step", "cat": "step", "ph": phase, "id": format!("{pid}.{}", step.0), "bp": "e", "ts": ts,
            "pid": pid, "tid": tid,
        }));
    }

    fn instant(&mut self, pid: usize, tid: u64, name: &str, at: Instant, args: &Value) {
        let ts = self.micros(at);
        let event = json!({ "name": name, "ph": "i", "s": "p", "ts": ts, "pid": pid, "tid": tid, "args": args });
        self.write(&event);
    }

    /// Ends the span of the previous status and begins one for the new status. The last span stays open.
    fn status(&mut self, pid: usize, status: &str, at: Instant) {
        let ts = self.micros(at);
        if std::mem::replace(&mut self.models[pid - 1].has_status, true) {
            self.write(&json!({ "ph": "E", "ts": ts, "pid": pid, "tid": SUPERVISOR }));
        }
        self.write(&json!({ "name": status, "cat": "status", "ph": "B", "ts": ts, "pid": pid, "tid": SUPERVISOR }));
    }

    /// Writes the spans of a request and its phases.
    fn request(&mut self, pid: usize, request: &EndedRequest) {
        let EndedRequest { id, times, usage, .. } = request;
        let args = json!({
            "request_id": request.context.as_ref().map(|context| &context.request_id),
            "reason": request.reason,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        });
        let name = format!("request {}", id.0);
        let phases = [
            ("queue", Some(times.submitted), times.started),
            ("prefill", times.started, times.first_token),
            ("decode", times.first_token, times.last_token),
        ];
        self.edge(pid, request, &name, "b", times.submitted, args);
        for (phase, from, to) in phases {
            if let Some(from) = from {
                self.edge(pid, request, phase, "b", from, json!({}));
                self.edge(pid, request, phase, "e", to.unwrap_or(request.at), json!({}));
            }
        }
        self.edge(pid, request, &name, "e", request.at, json!({}));
    }

    /// Writes the beginning or the end of a request or one of its phases.
    fn edge(&mut self, pid: usize, request: &EndedRequest, name: &str, edge: &str, at: Instant, args: Value) {
        let ts = self.micros(at);
        self.write(&json!({
            "name": name, "cat": "request", "ph": edge, "id": format!("{pid}.{}", request.id.0), "ts": ts,
            "pid": pid, "tid": 0, "args": args,
        }));
    }
}

/// The arguments of a step's span.
fn step_args(shape: &StepShape) -> Value {
    let prefill_rows: usize = shape.prefills.iter().map(|(_, rows)| rows).sum();
    json!({ "rows": shape.rows, "prefill_rows": prefill_rows, "sequences": shape.sequences })
}

impl Sink for ChromeTrace {
    fn record(&mut self, record: &Record) -> bool {
        let (pid, at) = (self.process(record), record.at);
        match &record.event {
            TraceEvent::StepFormed { step, from, shape } => self.step_formed(pid, *step, *from, at, shape),
            TraceEvent::StepBegun(step) => self.models[pid - 1].steps.begun(*step, at),
            TraceEvent::StepComputed { step, elapsed, ops } => {
                self.step_computed(pid, *step, at);
                self.ops(pid, *step, at, *elapsed, ops);
            }
            TraceEvent::SegmentComputed { step, micro_batch, from, elapsed } => {
                self.declare_optional_track(pid, SEGMENTS, "device, between experts on the host");
                self.span(pid, SEGMENTS, *step, "piece", (*from, *from + *elapsed), json!({ "part": micro_batch }));
            }
            TraceEvent::ExpertsComputed { step, micro_batch, layer, routes, from, elapsed } => {
                self.declare_optional_track(pid, EXPERTS, "experts on the host");
                let args = json!({ "part": micro_batch, "layer": layer, "routes": routes });
                self.span(pid, EXPERTS, *step, "experts", (*from, *from + *elapsed), args);
            }
            TraceEvent::StepSampled { step, from, sampled, sequences } => {
                self.span(pid, SAMPLER, *step, "sample", (*from, at), json!({ "sequences": sequences }));
                self.span(pid, SAMPLER, *step, "deliver", (*sampled, at), json!({}));
                self.flow(pid, SAMPLER, *step, "f", *from);
            }
            TraceEvent::Preempted(request) => {
                self.instant(pid, SCHEDULER, &format!("preempted request {}", request.0), at, &json!({}));
            }
            TraceEvent::Status(status) => self.status(pid, status, at),
            TraceEvent::Restarted { actor, reason } => {
                self.instant(pid, SUPERVISOR, &format!("restart {actor}"), at, &json!({ "reason": reason }));
            }
            TraceEvent::RequestEnded(request) => self.request(pid, request),
        }
        if self.bytes > MAX_BYTES && !self.failed {
            tracing::warn!(bytes = self.bytes, "the trace file is full and ends here");
            return false;
        }
        !self.failed
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.check(flushed);
    }

    fn finish(&mut self, dropped: u64) {
        if self.failed {
            return;
        }
        if dropped > 0 {
            tracing::warn!(dropped, "the trace file could not keep up and lacks records");
        }
        let closed = self.file.write_all(b"\n]\n").and_then(|()| self.file.flush());
        self.check(closed);
    }
}
