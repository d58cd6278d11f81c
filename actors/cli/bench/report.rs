//! Results as Markdown, JSON, JSON lines or CSV, with llama-bench's field names.

use std::time::Duration;

use cuelight_engine::load::ModelCard;
use serde_json::{Map, Value, json};

use super::measure::Shape;
use crate::config::ByteSize;

/// How results are printed.
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
    /// What it is.
    pub card: ModelCard,
    /// What computed: "cpu (avx2, 2 threads)".
    pub device: String,
    /// Threads that computed.
    pub threads: usize,
    /// Largest step.
    pub batch: usize,
    /// How keys and values were stored.
    pub kv_type: &'static str,
    /// What was timed.
    pub shape: Shape,
    /// When the test began, as RFC 3339.
    pub started: String,
    /// The samples.
    pub samples: Vec<Duration>,
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
    /// Tokens per second, a value for each sample.
    #[must_use]
    pub fn speeds(&self) -> Vec<f64> {
        let tokens = self.shape.timed_tokens() as f64;
        self.samples.iter().map(|sample| tokens / sample.as_secs_f64().max(1e-9)).collect()
    }

    /// Everything but the samples.
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
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    fn object(&self) -> Value {
        let mut fields = self.fields();
        let nanoseconds: Vec<u64> = self.samples.iter().map(|sample| sample.as_nanos() as u64).collect();
        fields.insert("samples_ns".to_owned(), json!(nanoseconds));
        fields.insert("samples_ts".to_owned(), json!(self.speeds()));
        Value::Object(fields)
    }

    fn markdown(&self) -> String {
        let (mean, deviation) = mean_and_deviation(&self.speeds());
        let model = format!("{} {}", self.card.name, self.card.quantization);
        let (size, params) = (ByteSize(self.card.size_bytes), people(self.card.n_params));
        let (threads, test) = (self.threads, self.shape.name());
        let speed = format!("{mean:.2} ± {deviation:.2}");
        format!("| {model} | {size} | {params} | {} | {threads} | {test} | {speed} |\n", self.device)
    }
}

/// A count for people: "134.5 M".
fn people(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.1} M", count as f64 / 1e6),
    }
}

impl Format {
    /// What comes before the first result.
    #[must_use]
    pub fn head(self) -> &'static str {
        match self {
            Format::Md => {
                "| model | size | params | backend | threads | test | t/s |\n| --- | ---: | ---: | --- | ---: | ---: | ---: |\n"
            }
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

    /// What comes after the last result.
    #[must_use]
    pub fn tail(self) -> &'static str {
        if self == Format::Json { "\n]\n" } else { "" }
    }
}

/// A value in quotes, those within it doubled (RFC 4180).
fn csv_cell(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn measurement() -> Measurement {
        let card = ModelCard {
            name: "Tiny".into(),
            architecture: "llama".into(),
            n_params: 134_515_008,
            size_bytes: 96 << 20,
            quantization: "Q4_1".into(),
            context_train: 2048,
            license: None,
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
        }
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[1.0, 2.0, 3.0]), (2.0, 1.0));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }

    #[test]
    fn markdown_has_a_row_for_each_test() {
        let row = Format::Md.result(0, &measurement());
        assert_eq!(row, "| Tiny Q4_1 | 96.0 MiB | 134.5 M | cpu (avx2, 2 threads) | 2 | pp100 | 75.00 ± 35.36 |\n");
    }

    #[test]
    fn json_is_one_list_and_jsonl_an_object_a_line() {
        let (format, test) = (Format::Json, measurement());
        let text = format!("{}{}{}{}", format.head(), format.result(0, &test), format.result(1, &test), format.tail());
        let list: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0]["samples_ns"], json!([1_000_000_000, 2_000_000_000]));
        assert_eq!(list[0]["avg_ts"], json!(75.0));
        let line: Value = serde_json::from_str(Format::Jsonl.result(0, &test).trim_end()).unwrap();
        assert_eq!(line, list[0]);
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let text = Format::Csv.result(0, &measurement());
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("\"a \"\"b\"\".gguf\""), "{text}");
    }
}
