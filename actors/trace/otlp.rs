//! OpenTelemetry: each request as a trace of spans, sent to a collector over HTTP.
//!
//! A request's span is called after what it does and the model ("chat demo") and carries the attributes of
//! OpenTelemetry's GenAI conventions. Below it are the time in the queue, each chunk of its prompt that a step computed,
//! the decode phase, and the sum of what turning tokens into text took. A client that sends `traceparent` finds them
//! below its own span, and decides whether there are any.
//!
//! The spans are made when a request has ended, from its record and those of its steps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio::time::Instant;

use super::call::TraceParent;
use super::request::EndedRequest;
use super::steps::{ComputedStep, DeviceSteps};
use super::{CastId, Record, Sink, TraceEvent};
use crate::request::RequestId;

/// Spans that wait for the collector before more are dropped.
const QUEUED_SPANS: usize = 1 << 14;
/// Between two exports when there are few spans.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Requests with chunks that are remembered until they end; those whose end was lost are forgotten first.
const MAX_REQUESTS: usize = 1 << 16;
/// Chunks of one request that become spans.
const MAX_CHUNKS: usize = 512;

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// No TLS, so that no second one has to be built in.
    #[error("the collector's URL {0:?} does not begin with http://; for TLS, run a collector beside the server")]
    NotHttp(String),
    /// The exporter takes no such URL.
    #[error("the collector's URL {url:?} cannot be used")]
    Exporter {
        /// The URL.
        url: String,
        /// Why.
        source: ExporterBuildError,
    },
}

/// Makes spans of records and sends them.
pub struct SpanExport {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The same moment on both clocks.
    epoch: (Instant, SystemTime),
    steps: HashMap<CastId, DeviceSteps>,
    chunks: BTreeMap<(RequestId, Arc<str>), Vec<Chunk>>,
}

/// A part of a request's prompt that was computed in a step.
struct Chunk {
    from: Instant,
    to: Instant,
    rows: usize,
    step: u64,
}

impl SpanExport {
    /// Spans go to the collector at `url`; without a path, to where collectors listen for traces.
    ///
    /// # Errors
    /// [`CollectorError`]. Whether somebody answers there shows later, in the log.
    pub fn start(url: &str) -> Result<Self, CollectorError> {
        let Some(rest) = url.strip_prefix("http://") else { return Err(CollectorError::NotHttp(url.to_owned())) };
        let has_path = rest.trim_end_matches('/').contains('/');
        let endpoint = if has_path { url.to_owned() } else { format!("{}/v1/traces", url.trim_end_matches('/')) };
        let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_endpoint(endpoint);
        let exporter = exporter.build().map_err(|source| CollectorError::Exporter { url: url.to_owned(), source })?;
        let batches =
            BatchConfigBuilder::default().with_max_queue_size(QUEUED_SPANS).with_scheduled_delay(EXPORT_INTERVAL);
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
        let resource = Resource::builder()
            .with_service_name("cuelight")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let provider = SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(processor);
        let provider = provider.build();
        Ok(SpanExport {
            tracer: provider.tracer("cuelight"),
            provider,
            epoch: (Instant::now(), SystemTime::now()),
            steps: HashMap::new(),
            chunks: BTreeMap::new(),
        })
    }

    fn system_time(&self, at: Instant) -> SystemTime {
        let (instant, system) = self.epoch;
        match at.checked_duration_since(instant) {
            Some(after) => system + after,
            None => system - instant.duration_since(at),
        }
    }

    /// Notes which chunks of prompts a step has computed.
    fn computed(&mut self, model_id: &Arc<str>, step: u64, ComputedStep { from, shape }: ComputedStep, to: Instant) {
        for (request, rows) in shape.prefills {
            let chunks = self.chunks.entry((request, model_id.clone())).or_default();
            if chunks.len() < MAX_CHUNKS {
                chunks.push(Chunk { from, to, rows, step });
            }
        }
        while self.chunks.len() > MAX_REQUESTS {
            self.chunks.pop_first();
        }
    }

    fn request(&mut self, model_id: &Arc<str>, request: &EndedRequest) {
        let chunks = self.chunks.remove(&(request.id, model_id.clone())).unwrap_or_default();
        let operation = request.call.as_ref().map_or("text_completion", |call| call.operation);
        let parent = request.call.as_ref().and_then(|call| call.parent);
        let context = parent.map_or_else(Context::new, remote);
        let builder = self
            .tracer
            .span_builder(format!("{operation} {model_id}"))
            .with_kind(SpanKind::Server)
            .with_start_time(self.system_time(request.times.submitted))
            .with_attributes(attributes(model_id, operation, request));
        let mut span = builder.start_with_context(&self.tracer, &context);
        let below = context.with_remote_span_context(span.span_context().clone());
        self.phases(&below, request, &chunks);
        if let Some(error) = &request.error {
            span.set_status(Status::error(error.clone()));
        }
        span.end_with_timestamp(self.system_time(request.at));
    }

    /// The spans below a request's.
    fn phases(&self, context: &Context, request: &EndedRequest, chunks: &[Chunk]) {
        let times = &request.times;
        let queue_end = times.started.unwrap_or(request.at);
        self.phase(context, "queue", (times.submitted, queue_end), Vec::new());
        for chunk in chunks {
            let facts = vec![integer("cuelight.prefill.tokens", chunk.rows), integer("cuelight.step", chunk.step)];
            self.phase(context, "prefill", (chunk.from, chunk.to), facts);
        }
        let (Some(first), Some(last)) = (times.first_token, times.last_token) else { return };
        let tokens = integer("gen_ai.usage.output_tokens", request.usage.completion_tokens);
        self.phase(context, "decode", (first, last), vec![tokens.clone()]);
        if let Some(sum) = request.detokenising {
            // As long as all its parts together, which lie between the tokens before.
            let facts = vec![KeyValue::new("cuelight.aggregate", true), tokens];
            self.phase(context, "detokenise", (last - sum.min(last.duration_since(times.submitted)), last), facts);
        }
    }

    fn phase(&self, context: &Context, name: &'static str, (from, to): (Instant, Instant), attributes: Vec<KeyValue>) {
        let builder = self.tracer.span_builder(name).with_start_time(self.system_time(from));
        let mut span = builder.with_attributes(attributes).start_with_context(&self.tracer, context);
        span.end_with_timestamp(self.system_time(to));
    }
}

/// A span of somebody else's, to put spans below.
fn remote(parent: TraceParent) -> Context {
    let flags = if parent.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (TraceId::from(parent.trace_id), SpanId::from(parent.span_id));
    Context::new().with_remote_span_context(SpanContext::new(trace_id, span_id, flags, true, TraceState::default()))
}

/// What GenAI conventions say about a request, and beside them the names that vLLM's users know.
fn attributes(model_id: &str, operation: &'static str, request: &EndedRequest) -> Vec<KeyValue> {
    let (usage, times) = (&request.usage, &request.times);
    // Without the digits that a wider type would show of 0.7.
    let number = |name: &'static str, value: f32| KeyValue::new(name, (f64::from(value) * 1e6).round() / 1e6);
    let since = |name: &'static str, at: Option<Instant>| {
        at.map(|at| KeyValue::new(name, at.duration_since(times.submitted).as_secs_f64()))
    };
    let reasons = vec![StringValue::from(finish_reason(request.reason))];
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", "cuelight"),
        KeyValue::new("gen_ai.request.model", model_id.to_owned()),
        integer("gen_ai.request.max_tokens", request.max_tokens),
        number("gen_ai.request.temperature", request.temperature),
        number("gen_ai.request.top_p", request.top_p),
        KeyValue::new("gen_ai.response.model", model_id.to_owned()),
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))),
        integer("gen_ai.usage.input_tokens", usage.prompt_tokens),
        integer("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        integer("gen_ai.usage.output_tokens", usage.completion_tokens),
    ];
    attributes.extend(since("gen_ai.latency.time_in_queue", times.started));
    attributes.extend(since("gen_ai.latency.time_to_first_token", times.first_token));
    attributes.extend(since("gen_ai.latency.e2e", Some(request.at)));
    if let Some(call) = &request.call {
        attributes.push(KeyValue::new("cuelight.request_id", call.request_id.clone()));
        attributes.extend(call.response_id().map(|id| KeyValue::new("gen_ai.response.id", id.to_owned())));
    }
    if request.error.is_some() {
        attributes.push(KeyValue::new("error.type", request.reason));
    }
    attributes
}

/// As the API words it.
fn finish_reason(reason: &'static str) -> &'static str {
    match reason {
        "stop_token" | "stop_string" => "stop",
        other => other,
    }
}

fn integer(name: &'static str, value: impl TryInto<i64>) -> KeyValue {
    KeyValue::new(name, value.try_into().unwrap_or(i64::MAX))
}

impl Sink for SpanExport {
    fn record(&mut self, record: &Record) -> bool {
        let (cast, model_id, at) = (&record.cast, &record.cast.model_id, record.at);
        match &record.event {
            TraceEvent::StepFormed { step, shape, .. } => {
                self.steps.entry(cast.clone()).or_default().formed(*step, shape);
            }
            TraceEvent::StepBegun(step) => self.steps.entry(cast.clone()).or_default().begun(*step, at),
            TraceEvent::StepComputed { step, .. } => {
                let steps = self.steps.entry(cast.clone()).or_default();
                if let Some(computed) = steps.computed(*step, at) {
                    self.computed(model_id, step.0, computed, at);
                }
            }
            TraceEvent::RequestEnded(request) => self.request(model_id, request),
            TraceEvent::StepSampled { .. }
            | TraceEvent::PieceComputed { .. }
            | TraceEvent::ExpertsComputed { .. }
            | TraceEvent::Preempted(_)
            | TraceEvent::Status(_)
            | TraceEvent::Restarted { .. } => {}
        }
        true
    }

    /// The SDK exports on a thread and a schedule of its own.
    fn flush(&mut self) {}

    fn finish(&mut self, dropped: u64) {
        if dropped > 0 {
            tracing::warn!(dropped, "the export of spans could not keep up and lacks records");
        }
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}
