//! A file in Chrome's trace event format, for Perfetto or `chrome://tracing`.
//!
//! A model is a process, its actors are the process's tracks: when the scheduler formed a step, the device computed it,
//! the sampler sampled it; arrows lead from one to the next. Where ops are measured, a track has those of each step.
//! Requests are spans of their own below, in their phases.
//!
//! The file is one JSON array. Viewers take it without its closing bracket too, so what was flushed before a crash can
//! be looked at.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use cuelight_engine::engine::StepId;
use cuelight_engine::profile::OpSpan;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::request::EndedRequest;
use super::steps::{ComputedStep, DeviceSteps};
use super::{CastId, Record, Sink, StepShape, TraceEvent};

/// Larger files cannot be looked at.
const MAX_BYTES: u64 = 1 << 30;

/// The tracks of a model's process.
const SCHEDULER: u64 = 1;
const DEVICE: u64 = 2;
const SAMPLER: u64 = 3;
const SUPERVISOR: u64 = 4;
/// Only there where ops are measured.
const OPS: u64 = 5;
/// Only there where experts are computed on the host, as are the pieces of the device's steps between them.
const PIECES: u64 = 6;
const EXPERTS: u64 = 7;

/// Writes records as trace events.
pub struct ChromeTrace {
    file: BufWriter<File>,
    epoch: Instant,
    models: Vec<Model>,
    bytes: u64,
    /// The first error; nothing is written after it.
    failed: bool,
}

/// What is remembered of a model.
struct Model {
    cast: CastId,
    steps: DeviceSteps,
    /// Whether a status's span is open.
    has_status: bool,
    /// The tracks that are introduced when there is something on them, and are.
    introduced: Vec<u64>,
}

impl ChromeTrace {
    /// Begins the file; what it held is gone.
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

    /// The model's place among the processes, from 1; new ones are introduced.
    fn process(&mut self, record: &Record) -> usize {
        if let Some(index) = self.models.iter().position(|model| model.cast == record.cast) {
            return index + 1;
        }
        let model = Model {
            cast: record.cast.clone(),
            steps: DeviceSteps::default(),
            has_status: false,
            introduced: Vec::new(),
        };
        self.models.push(model);
        let pid = self.models.len();
        let name = json!({ "name": format!("model {}", record.cast) });
        self.write(&json!({ "name": "process_name", "ph": "M", "pid": pid, "args": name }));
        for (tid, name) in
            [(SCHEDULER, "scheduler"), (DEVICE, "device"), (SAMPLER, "sampler"), (SUPERVISOR, "supervisor")]
        {
            self.introduce(pid, tid, name, tid);
        }
        pid
    }

    /// Names a track of a process and gives it a place among the others.
    fn introduce(&mut self, pid: usize, tid: u64, name: &str, place: u64) {
        let name = json!({ "name": name });
        self.write(&json!({ "name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": name }));
        let order = json!({ "sort_index": place });
        self.write(&json!({ "name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": order }));
    }

    /// Introduces a track that most models do not have, behind the device's.
    fn introduce_late(&mut self, pid: usize, tid: u64, name: &str) {
        if !self.models[pid - 1].introduced.contains(&tid) {
            self.models[pid - 1].introduced.push(tid);
            self.introduce(pid, tid, name, DEVICE);
        }
    }

    fn step_formed(&mut self, pid: usize, step: StepId, from: Instant, to: Instant, shape: &StepShape) {
        self.span(pid, SCHEDULER, step, "form", (from, to), facts(shape));
        self.flow(pid, SCHEDULER, step, "s", from);
        self.models[pid - 1].steps.formed(step, shape);
    }

    fn step_computed(&mut self, pid: usize, step: StepId, to: Instant) {
        let Some(ComputedStep { from, shape }) = self.models[pid - 1].steps.computed(step, to) else { return };
        self.span(pid, DEVICE, step, "compute", (from, to), facts(&shape));
        self.flow(pid, DEVICE, step, "t", from);
    }

    /// The ops of a step that was over at `to`, having taken `elapsed`.
    fn ops(&mut self, pid: usize, step: StepId, to: Instant, elapsed: Duration, ops: &[OpSpan]) {
        if ops.is_empty() {
            return;
        }
        self.introduce_late(pid, OPS, "ops");
        // The news of the step's end came a little later than its end.
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

    /// A piece of work of an actor.
    fn span(&mut self, pid: usize, tid: u64, step: StepId, name: &str, (from, to): (Instant, Instant), args: Value) {
        let (ts, end) = (self.micros(from), self.micros(to));
        self.write(&json!({
            "name": format!("{name} {}", step.0), "cat": "step", "ph": "X", "ts": ts, "dur": end - ts,
            "pid": pid, "tid": tid, "args": args,
        }));
    }

    /// A point of the arrow from the forming of a step to its computing to its sampling.
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

    /// The model's status lasts until the next; the last one's span stays open.
    fn status(&mut self, pid: usize, status: &str, at: Instant) {
        let ts = self.micros(at);
        if std::mem::replace(&mut self.models[pid - 1].has_status, true) {
            self.write(&json!({ "ph": "E", "ts": ts, "pid": pid, "tid": SUPERVISOR }));
        }
        self.write(&json!({ "name": status, "cat": "status", "ph": "B", "ts": ts, "pid": pid, "tid": SUPERVISOR }));
    }

    /// A request's life in its phases, as far as it came.
    fn request(&mut self, pid: usize, request: &EndedRequest) {
        let EndedRequest { id, times, usage, .. } = request;
        let args = json!({
            "request_id": request.call.as_ref().map(|call| &call.request_id),
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

    /// The begin or the end of a request's phase.
    fn edge(&mut self, pid: usize, request: &EndedRequest, name: &str, edge: &str, at: Instant, args: Value) {
        let ts = self.micros(at);
        self.write(&json!({
            "name": name, "cat": "request", "ph": edge, "id": format!("{pid}.{}", request.id.0), "ts": ts,
            "pid": pid, "tid": 0, "args": args,
        }));
    }
}

/// What a step consists of.
fn facts(shape: &StepShape) -> Value {
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
            TraceEvent::PieceComputed { step, part, from, elapsed } => {
                self.introduce_late(pid, PIECES, "device, between experts on the host");
                self.span(pid, PIECES, *step, "piece", (*from, *from + *elapsed), json!({ "part": part }));
            }
            TraceEvent::ExpertsComputed { step, part, layer, routes, from, elapsed } => {
                self.introduce_late(pid, EXPERTS, "experts on the host");
                let args = json!({ "part": part, "layer": layer, "routes": routes });
                self.span(pid, EXPERTS, *step, "experts", (*from, *from + *elapsed), args);
            }
            TraceEvent::StepSampled { step, from, chosen, sequences } => {
                self.span(pid, SAMPLER, *step, "sample", (*from, at), json!({ "sequences": sequences }));
                self.span(pid, SAMPLER, *step, "deliver", (*chosen, at), json!({}));
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
