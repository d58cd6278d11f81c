//! Results as Markdown, JSON, JSON lines or CSV, with llama-bench's field names.

use std::time::Duration;

use cuelight_engine::load::ComputeDevice;
use cuelight_engine::load::ModelCard;
use cuelight_engine::profile::Cost;
use cuelight_engine::roofline::{Roofline, Worker};
use serde_json::{Map, Value, json};

use super::measure::Shape;
use super::profile::{Profile, giga, percent, rate};
use crate::config::ByteSize;

/// The output format of `cuelight bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A Markdown table.
    Md,
    /// A JSON list.
    Json,
    /// A JSON object a line.
    Jsonl,
    /// Comma-separated values.
    Csv,
}

/// One test's result.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The model's file.
    pub path: String,
    /// The model's description.
    pub card: ModelCard,
    /// The device: "cpu (avx2, 2 threads)".
    pub device: String,
    /// Number of compute threads.
    pub threads: usize,
    /// Maximum rows in a step.
    pub batch: usize,
    /// Storage of keys and values.
    pub kv_type: &'static str,
    /// The timed shape.
    pub shape: Shape,
    /// Start of the test, as RFC 3339.
    pub started: String,
    /// The time of each repetition.
    pub samples: Vec<Duration>,
    /// The minimum work of one repetition, if known.
    pub cost: Option<Cost>,
    /// The machine's limits, if measured.
    pub roofline: Option<Roofline>,
    /// The time by op, if measured.
    pub profile: Option<Profile>,
}

/// The rates of a test, next to the machine's limits.
struct Achieved {
    gb_per_s: f64,
    gops: f64,
    roofline: Option<Roofline>,
}

impl Achieved {
    fn bandwidth_share(&self) -> Option<f64> {
        Some(self.gb_per_s * 1e9 / self.roofline?.memory_bandwidth)
    }

    fn peak_share(&self) -> Option<f64> {
        Some(self.gops * 1e9 / self.roofline?.product_peak())
    }
}

/// Mean and sample standard deviation.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

impl Measurement {
    /// Tokens per second of each repetition.
    #[must_use]
    pub fn speeds(&self) -> Vec<f64> {
        let tokens = self.shape.timed_tokens() as f64;
        self.samples.iter().map(|sample| tokens / sample.as_secs_f64().max(1e-9)).collect()
    }

    /// The rates at the mean of the samples.
    fn achieved(&self) -> Option<Achieved> {
        let mean = self.samples.iter().sum::<Duration>() / u32::try_from(self.samples.len().max(1)).ok()?;
        let cost = self.cost?;
        let (gb_per_s, gops) = (giga(cost.memory_bytes, mean), giga(cost.operations(), mean));
        Some(Achieved { gb_per_s, gops, roofline: self.roofline })
    }

    /// All fields except the samples.
    fn fields(&self) -> Map<String, Value> {
        let nanoseconds: Vec<f64> = self.samples.iter().map(|sample| sample.as_nanos() as f64).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&nanoseconds);
        let (avg_ts, stddev_ts) = mean_and_deviation(&self.speeds());
        let fields = json!({
            "build_version": env!("CARGO_PKG_VERSION"),
            "backends": self.device,
            "model_filename": self.path,
            "model_type": format!("{} {}", self.card.architecture, self.card.quantization),
            "model_size": self.card.size_bytes,
            "model_n_params": self.card.n_params,
            "n_batch": self.batch,
            "n_threads": self.threads,
            "type_k": self.kv_type,
            "type_v": self.kv_type,
            "n_prompt": self.shape.prompt,
            "n_gen": self.shape.generated,
            "n_depth": self.shape.depth,
            "n_parallel": self.shape.parallel,
            "test_time": self.started,
            "avg_ns": avg_ns.round() as u64,
            "stddev_ns": stddev_ns.round() as u64,
            "avg_ts": avg_ts,
            "stddev_ts": stddev_ts,
        });
        let Value::Object(mut fields) = fields else { return Map::new() };
        if let Some(achieved) = self.achieved() {
            fields.insert("gb_per_s".to_owned(), json!(achieved.gb_per_s));
            fields.insert("gops".to_owned(), json!(achieved.gops));
            if let Some((bandwidth, peak)) = achieved.bandwidth_share().zip(achieved.peak_share()) {
                fields.insert("bandwidth_share".to_owned(), json!(bandwidth));
                fields.insert("peak_share".to_owned(), json!(peak));
            }
        }
        fields
    }

    fn object(&self) -> Value {
        let mut fields = self.fields();
        let nanoseconds: Vec<u64> = self.samples.iter().map(|sample| sample.as_nanos() as u64).collect();
        fields.insert("samples_ns".to_owned(), json!(nanoseconds));
        fields.insert("samples_ts".to_owned(), json!(self.speeds()));
        if let Some(roofline) = &self.roofline {
            fields.insert("roofline".to_owned(), limits(roofline));
        }
        if let Some(profile) = &self.profile {
            fields.insert("profile".to_owned(), profile.json());
        }
        Value::Object(fields)
    }

    fn markdown(&self) -> String {
        let (mean, deviation) = mean_and_deviation(&self.speeds());
        let model = format!("{} {}", self.card.name, self.card.quantization);
        let (size, params) = (ByteSize(self.card.size_bytes), count(self.card.n_params));
        let (threads, test) = (self.threads, self.shape.name());
        let speed = format!("{mean:.2} ± {deviation:.2}");
        let (mut bandwidth, mut operations) = (String::new(), String::new());
        if let Some(achieved) = self.achieved() {
            let of = |share: Option<f64>| share.map(|share| format!(" ({})", percent(share))).unwrap_or_default();
            bandwidth = rate(achieved.gb_per_s) + &of(achieved.bandwidth_share());
            operations = rate(achieved.gops) + &of(achieved.peak_share());
        }
        let device = &self.device;
        let row = format!(
            "| {model} | {size} | {params} | {device} | {threads} | {test} | {speed} | {bandwidth} | {operations} |\n"
        );
        match &self.profile {
            Some(profile) => format!("{MARKDOWN_HEAD}{row}\n{}\n", profile.markdown()),
            None => row,
        }
    }
}

/// The machine's limits as JSON.
fn limits(roofline: &Roofline) -> Value {
    let (device, kernel, threads) = match roofline.worker {
        Worker::Cpu(kernel, threads) => (ComputeDevice::Cpu, Some(kernel.name()), Some(threads)),
        Worker::Vulkan(index) => (ComputeDevice::Vulkan(index), None, None),
    };
    json!({
        "device": device.to_string(),
        "kernel": kernel,
        "threads": threads,
        "memory_gb_per_s": roofline.memory_bandwidth / 1e9,
        "cache_gb_per_s": roofline.cache_bandwidth / 1e9,
        "int8_gops": roofline.integer_peak.map(|peak| peak / 1e9),
        "f16_matrix_gops": roofline.matrix_peak.map(|peak| peak / 1e9),
        "f32_gops": roofline.float_peak / 1e9,
    })
}

/// The machine's limits as a Markdown table, with a column for each number of threads.
#[must_use]
pub fn limits_table(rooflines: &[Roofline]) -> String {
    let Some(first) = rooflines.first() else { return String::new() };
    let row = |name: &str, unit: &str, value: &dyn Fn(&Roofline) -> Option<f64>| {
        let cell =
            |roofline: &Roofline| value(roofline).map_or_else(|| "-".to_owned(), |value| rate(value / 1e9) + unit);
        let cells: Vec<String> = rooflines.iter().map(cell).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let worker = |roofline: &Roofline| match roofline.worker {
        Worker::Cpu(_, 1) => "1 thread".to_owned(),
        Worker::Cpu(_, threads) => format!("{threads} threads"),
        Worker::Vulkan(_) => "device".to_owned(),
    };
    let head: Vec<String> = rooflines.iter().map(worker).collect();
    let (name, caches, products) = match first.worker {
        Worker::Cpu(kernel, _) => {
            let products = row("int8 dot products", " GOPS", &|roofline| roofline.integer_peak);
            (kernel.to_string(), "read within 64 MiB", products)
        }
        Worker::Vulkan(index) => {
            let products = row("f16 matrices", " GOPS", &|roofline| roofline.matrix_peak);
            (ComputeDevice::Vulkan(index).to_string(), "read within 16 MiB", products)
        }
    };
    [
        format!("| {name} | {} |\n| --- |{}\n", head.join(" | "), " ---: |".repeat(head.len())),
        row("read from memory", " GB/s", &|roofline| Some(roofline.memory_bandwidth)),
        row(caches, " GB/s", &|roofline| Some(roofline.cache_bandwidth)),
        products,
        row("f32 multiply-adds", " GOPS", &|roofline| Some(roofline.float_peak)),
        "\n".to_owned(),
    ]
    .concat()
}

const MARKDOWN_HEAD: &str = "\
| model | size | params | backend | threads | test | t/s | GB/s | GOPS |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |
";

/// A count with its unit: "134.5 M".
fn count(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.1} M", count as f64 / 1e6),
    }
}

impl Format {
    /// The text before the first result. With profiles, each result prints the table's head itself.
    #[must_use]
    pub fn head(self, with_profiles: bool) -> &'static str {
        match self {
            Format::Md if with_profiles => "",
            Format::Md => MARKDOWN_HEAD,
            Format::Json => "[\n",
            Format::Jsonl | Format::Csv => "",
        }
    }

    /// One result; `index` counts from 0.
    #[must_use]
    pub fn result(self, index: usize, measurement: &Measurement) -> String {
        match self {
            Format::Md => measurement.markdown(),
            Format::Json => format!("{}{:#}", if index > 0 { ",\n" } else { "" }, measurement.object()),
            Format::Jsonl => format!("{}\n", measurement.object()),
            Format::Csv => {
                let fields = measurement.fields();
                let row: Vec<String> = fields.values().map(csv_cell).collect();
                let head: Vec<&str> = fields.keys().map(String::as_str).collect();
                let head = if index == 0 { format!("{}\n", head.join(",")) } else { String::new() };
                format!("{head}{}\n", row.join(","))
            }
        }
    }

    /// The text after the last result.
    #[must_use]
    pub fn tail(self) -> &'static str {
        if self == Format::Json { "\n]\n" } else { "" }
    }
}

/// A value in quotes, with quotes inside it doubled (RFC 4180).
fn csv_cell(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::embedding::{EmbeddingSpec, Pooling};
    use cuelight_engine::load::Kernel;

    use super::*;

    fn measurement() -> Measurement {
        let card = ModelCard {
            file_format: "gguf",
            name: "Tiny".into(),
            architecture: "llama".into(),
            n_params: 134_515_008,
            size_bytes: 96 << 20,
            quantization: "Q4_1".into(),
            context_train: 2048,
            license: None,
            embedding: EmbeddingSpec::of_vectors(Pooling::Last, 64, false),
            labels: Vec::new(),
            rerank_template: None,
            layers: Vec::new(),
            residuals: Vec::new(),
            prediction: None,
            denoising: None,
            sampling: Default::default(),
            stop: Vec::new(),
            system: None,
        };
        Measurement {
            path: "a \"b\".gguf".into(),
            card,
            device: "cpu (avx2, 2 threads)".into(),
            threads: 2,
            batch: 512,
            kv_type: "f16",
            shape: Shape { prompt: 100, generated: 0, depth: 0, parallel: 1 },
            started: "2026-01-01T00:00:00Z".into(),
            samples: vec![Duration::from_secs(1), Duration::from_secs(2)],
            cost: None,
            roofline: None,
            profile: None,
        }
    }

    fn roofline() -> Roofline {
        Roofline {
            worker: Worker::Cpu(Kernel::Avx2Integer, 2),
            matrix_peak: None,
            memory_bandwidth: 40e9,
            cache_bandwidth: 50e9,
            integer_peak: Some(1e12),
            float_peak: 250e9,
        }
    }

    #[test]
    fn the_deviation_is_the_sample_deviation() {
        assert_eq!(mean_and_deviation(&[1.0, 2.0, 3.0]), (2.0, 1.0));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }

    #[test]
    fn markdown_has_a_row_for_each_test() {
        let row = Format::Md.result(0, &measurement());
        let cells = "| Tiny Q4_1 | 96.0 MiB | 134.5 M | cpu (avx2, 2 threads) | 2 | pp100 | 75.00 ± 35.36 |";
        assert_eq!(row, format!("{cells}  |  |\n"));
        // The mean of the samples is 1.5 s.
        let cost = Cost { memory_bytes: 6_000_000_000, integer_operations: 300_000_000_000, ..Cost::default() };
        let measured = Measurement { cost: Some(cost), ..measurement() };
        assert_eq!(Format::Md.result(0, &measured), format!("{cells} 4.00 | 200 |\n"));
        let measured = Measurement { roofline: Some(roofline()), ..measured };
        assert_eq!(Format::Md.result(0, &measured), format!("{cells} 4.00 (10 %) | 200 (20 %) |\n"));
        let line: Value = serde_json::from_str(&Format::Jsonl.result(0, &measured)).unwrap();
        assert_eq!((line["gb_per_s"].as_f64(), line["peak_share"].as_f64()), (Some(4.0), Some(0.2)));
        assert_eq!(line["roofline"]["int8_gops"], 1000.0);
    }

    #[test]
    fn a_profile_is_printed_below_its_test() {
        let profile = Profile::new(&[], Duration::from_secs(3), None);
        let text = Format::Md.result(0, &Measurement { profile: Some(profile), ..measurement() });
        assert!(text.starts_with(MARKDOWN_HEAD) && text.contains("\n\n| op | calls |"), "{text}");
        assert_eq!(Format::Md.head(true), "");
    }

    #[test]
    fn limits_have_a_column_for_each_number_of_threads() {
        let rooflines =
            [Roofline { worker: Worker::Cpu(Kernel::Avx2Integer, 1), integer_peak: None, ..roofline() }, roofline()];
        let table = limits_table(&rooflines);
        assert!(table.starts_with("| avx2-integer | 1 thread | 2 threads |\n| --- | ---: | ---: |\n"), "{table}");
        assert!(table.contains("\n| int8 dot products | - | 1000 GOPS |\n"), "{table}");
    }

    #[test]
    fn json_is_one_list_and_jsonl_an_object_a_line() {
        let (format, test) = (Format::Json, measurement());
        let text =
            format!("{}{}{}{}", format.head(false), format.result(0, &test), format.result(1, &test), format.tail());
        let list: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0]["samples_ns"], json!([1_000_000_000, 2_000_000_000]));
        assert_eq!(list[0]["avg_ts"], json!(75.0));
        let line: Value = serde_json::from_str(Format::Jsonl.result(0, &test).trim_end()).unwrap();
        assert_eq!(line, list[0]);
    }

    #[test]
    fn csv_values_are_quoted() {
        let text = Format::Csv.result(0, &measurement());
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("\"a \"\"b\"\".gguf\""), "{text}");
    }
}
