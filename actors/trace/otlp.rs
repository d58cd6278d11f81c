//! Sends each request to an OpenTelemetry collector over HTTP, as a trace of spans.
//!
//! The span of a request is named after its operation and model ("chat demo") and has the attributes of the OpenTelemetry
//! GenAI conventions. Its child spans are the time in the queue, each chunk of its prompt, the decode phase, and the total
//! time of converting tokens to text. When a client sends `traceparent`, the span becomes a child of the client's span, and
//! the client's sampling decision applies.
//!
//! The spans are created when the request ends, from its record and the records of its steps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::HttpError;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio::time::Instant;

use super::collector_client::CollectorClient;
use super::record::{PipelineId, Record, Sink, TraceEvent};
use super::steps::{ComputedStep, DeviceSteps};
use crate::core::ended_request::EndedRequest;
use crate::core::request::RequestId;
use crate::core::request_context::TraceParent;

/// Number of spans buffered for the collector before more are dropped.
const QUEUED_SPANS: usize = 1 << 14;
/// Interval between two exports when there are few spans.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of requests whose chunks are stored until they end. The oldest are dropped first.
const MAX_REQUESTS: usize = 1 << 16;
/// Maximum number of chunks of one request that become spans.
const MAX_CHUNKS: usize = 512;

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The URL is not `http://`. TLS is not supported.
    #[error("the collector's URL {0:?} does not begin with http://; for TLS, run a collector next to the server")]
    NotHttp(String),
    /// The HTTP client cannot be made.
    #[error("the HTTP client for the collector cannot be made")]
    Client(#[source] HttpError),
    /// The exporter does not accept the URL.
    #[error("the collector's URL {url:?} cannot be used")]
    Exporter {
        /// The URL.
        url: String,
        /// The cause.
        source: ExporterBuildError,
    },
}

/// Converts records to spans and sends them.
pub struct SpanExport {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The same point in time on both clocks.
    epoch: (Instant, SystemTime),
    steps: HashMap<PipelineId, DeviceSteps>,
    chunks: BTreeMap<(RequestId, Arc<str>), Vec<Chunk>>,
}

/// A chunk of a request's prompt that was computed in a step.
struct Chunk {
    from: Instant,
    to: Instant,
    rows: usize,
    step: u64,
}

impl SpanExport {
    /// Starts the export to the collector at `url`. Without a path the default path `/v1/traces` is used.
    ///
    /// # Errors
    /// [`CollectorError`] when the URL cannot be used. A collector that does not respond is logged later.
    pub fn start(url: &str) -> Result<Self, CollectorError> {
        let Some(rest) = url.strip_prefix("http://") else { return Err(CollectorError::NotHttp(url.to_owned())) };
        let has_path = rest.trim_end_matches('/').contains('/');
        let endpoint = if has_path { url.to_owned() } else { format!("{}/v1/traces", url.trim_end_matches('/')) };
        let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_endpoint(endpoint);
        let exporter = exporter.with_http_client(CollectorClient::new().map_err(CollectorError::Client)?);
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

    /// Stores the prompt chunks that a step has computed.
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
        let operation = request.context.as_ref().map_or("text_completion", |call| call.operation);
        let parent = request.context.as_ref().and_then(|call| call.parent);
        let context = parent.map_or_else(Context::new, parent_context);
        let builder = self
            .tracer
            .span_builder(format!("{operation} {model_id}"))
            .with_kind(SpanKind::Server)
            .with_start_time(self.system_time(request.times.submitted))
            .with_attributes(attributes(model_id, operation, request));
        let mut span = builder.start_with_context(&self.tracer, &context);
        let child_context = context.with_remote_span_context(span.span_context().clone());
        self.phases(&child_context, request, &chunks);
        if let Some(error) = &request.error {
            span.set_status(Status::error(error.clone()));
        }
        span.end_with_timestamp(self.system_time(request.at));
    }

    /// Creates the child spans of a request.
    fn phases(&self, context: &Context, request: &EndedRequest, chunks: &[Chunk]) {
        let times = &request.times;
        let queue_end = times.started.unwrap_or(request.at);
        self.phase(context, "queue", (times.submitted, queue_end), Vec::new());
        for chunk in chunks {
            let attributes = vec![integer("cuelight.prefill.tokens", chunk.rows), integer("cuelight.step", chunk.step)];
            self.phase(context, "prefill", (chunk.from, chunk.to), attributes);
        }
        let (Some(first), Some(last)) = (times.first_token, times.last_token) else { return };
        let tokens = integer("gen_ai.usage.output_tokens", request.usage.completion_tokens);
        self.phase(context, "decode", (first, last), vec![tokens.clone()]);
        if let Some(sum) = request.detokenise_time {
            // One span with the total time. The actual work is spread over the decode phase.
            let attributes = vec![KeyValue::new("cuelight.aggregate", true), tokens];
            self.phase(context, "detokenise", (last - sum.min(last.duration_since(times.submitted)), last), attributes);
        }
    }

    fn phase(&self, context: &Context, name: &'static str, (from, to): (Instant, Instant), attributes: Vec<KeyValue>) {
        let builder = self.tracer.span_builder(name).with_start_time(self.system_time(from));
        let mut span = builder.with_attributes(attributes).start_with_context(&self.tracer, context);
        span.end_with_timestamp(self.system_time(to));
    }
}

/// A context whose child spans have the caller's span as parent.
fn parent_context(parent: TraceParent) -> Context {
    let flags = if parent.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (TraceId::from(parent.trace_id), SpanId::from(parent.span_id));
    Context::new().with_remote_span_context(SpanContext::new(trace_id, span_id, flags, true, TraceState::default()))
}

/// The attributes of a request in the GenAI conventions, and the latency attributes that vLLM uses.
fn attributes(model_id: &str, operation: &'static str, request: &EndedRequest) -> Vec<KeyValue> {
    let (usage, times) = (&request.usage, &request.times);
    // Rounded, because converting 0.7 to f64 would show more digits.
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
    if let Some(call) = &request.context {
        attributes.push(KeyValue::new("cuelight.request_id", call.request_id.clone()));
        attributes.extend(call.response_id().map(|id| KeyValue::new("gen_ai.response.id", id.to_owned())));
    }
    if request.error.is_some() {
        attributes.push(KeyValue::new("error.type", request.reason));
    }
    attributes
}

/// The finish reason as the API reports it.
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
        let (pipeline, model_id, at) = (&record.pipeline, &record.pipeline.model_id, record.at);
        match &record.event {
            TraceEvent::StepFormed { step, shape, .. } => {
                self.steps.entry(pipeline.clone()).or_default().formed(*step, shape);
            }
            TraceEvent::StepBegun(step) => self.steps.entry(pipeline.clone()).or_default().begun(*step, at),
            TraceEvent::StepComputed { step, .. } => {
                let steps = self.steps.entry(pipeline.clone()).or_default();
                if let Some(computed) = steps.computed(*step, at) {
                    self.computed(model_id, step.0, computed, at);
                }
            }
            TraceEvent::RequestEnded(request) => self.request(model_id, request),
            TraceEvent::StepSampled { .. }
            | TraceEvent::SegmentComputed { .. }
            | TraceEvent::ExpertsComputed { .. }
            | TraceEvent::Preempted(_)
            | TraceEvent::Status(_)
            | TraceEvent::Restarted { .. } => {}
        }
        true
    }

    /// Does nothing: the SDK exports on its own thread and schedule.
    fn flush(&mut self) {}

    fn finish(&mut self, dropped: u64) {
        if dropped > 0 {
            tracing::warn!(dropped, "the span export could not keep up and lost records");
        }
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last spans could not be sent to the collector");
        }
    }
}
