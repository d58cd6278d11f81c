//! Tests of the scraped metrics: all metrics of the table, their values after known requests, the vLLM aliases, the cost of
//! rendering, and whether dashboard, alerts and manual use existing metrics.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cuelight::api::ServerOptions;
use cuelight::metrics::catalogue::{self, Kind, METRICS};
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::metrics::vllm::{self, alias_names};
use cuelight::pipeline::kv_store::KvStoreOptions;
use cuelight::pipeline::runtime::RuntimeOptions;
use cuelight::pipeline::simulated_media::SimulatedMedia;
use cuelight::pipeline::simulation::SimulatedModel;
use serde_json::{Value, json};

use common::{MODEL, Server, model};

/// Runs `requests` chat calls of 8 tokens each on a paused clock, and scrapes the metrics.
async fn scrape_after(requests: usize, compat: Compat) -> String {
    let (recorder, exposition) = Exposition::new(compat).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    exposition.start();
    let options = ServerOptions { metrics: Some(exposition), ..ServerOptions::new(MODEL) };
    let runtime = RuntimeOptions { model_id: MODEL.into(), ..RuntimeOptions::default() };
    let model = SimulatedModel { end_one_in: u64::MAX, step_time: Duration::from_millis(3), ..model() };
    let model = model.with_media(SimulatedMedia::default());
    let server = Server::start_with(model, runtime, options).await;
    for _ in 0..requests {
        // Longer than a KV block, so that later calls find a cached prefix.
        let messages = json!([{ "role": "user", "content": "hello ".repeat(10) }]);
        // Each call gives the same answer, which would be a draft for the next one.
        let body = json!({
            "model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, "n": 2, "speculation": false,
        });
        server.ok("/v1/chat/completions", &body).await;
    }
    server.settle().await;
    server.get("/metrics").await.text()
}

/// All samples, by name and labels.
fn samples(text: &str) -> HashMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(name, value)| (name, value.parse().unwrap())).collect()
}

#[tokio::test(start_paused = true)]
async fn all_metrics_are_scraped_with_help_text_and_labels() {
    let text = scrape_after(1, Compat::None).await;
    for metric in METRICS {
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help.trim())), "{}", metric.name);
        let suffix = if matches!(metric.kind, Kind::Histogram(_)) { "_count" } else { "" };
        let name = format!("{}{suffix}", metric.name);
        let is_sample = |line: &&str| line.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let sample = text.lines().find(is_sample).unwrap_or_else(|| panic!("{name} is not scraped:\n{text}"));
        let missing = metric.labels.iter().find(|label| !sample.contains(&format!("{label}=\"")));
        assert_eq!(missing, None, "{sample}");
    }
    let known = |name: &str| METRICS.iter().any(|metric| metric.name == name);
    let declared = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert_eq!(declared.filter(|name| !known(name)).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_scraped_values_match_the_requests() {
    let text = scrape_after(3, Compat::None).await;
    let samples = samples(&text);
    let model = |name: &str, more: &str| {
        let key = format!("{name}{{model=\"{MODEL}\"{more}}}");
        *samples.get(key.as_str()).unwrap_or_else(|| panic!("{key} is not in\n{text}"))
    };
    const REPLICA: &str = ",replica=\"0\"";
    // Three calls of two sequences with eight tokens each.
    assert_eq!(model("cuelight_requests_finished_total", ",reason=\"length\""), 6.0);
    assert_eq!(model("cuelight_requests_finished_total", ",reason=\"engine_error\""), 0.0);
    assert_eq!(model("cuelight_generation_tokens_total", ""), 48.0);
    let prompt = model("cuelight_request_prompt_tokens_sum", "");
    let by_source = |source: &str| model("cuelight_prompt_tokens_total", &format!(",source=\"{source}\""));
    assert_eq!(by_source("computed") + by_source("cached"), prompt);
    assert!(by_source("computed") > 0.0 && by_source("cached") > 0.0, "{text}");
    assert_eq!(model("cuelight_prefix_cache_queries_total", ""), prompt);
    assert_eq!(model("cuelight_prefix_cache_hits_total", ""), by_source("cached"));
    assert_eq!(model("cuelight_inter_token_latency_seconds_count", ""), 42.0);
    // A step takes 3 ms, so no token arrives earlier, and nearly all arrive within the next bucket.
    assert_eq!(model("cuelight_inter_token_latency_seconds_bucket", ",le=\"0.002\""), 0.0);
    assert!(model("cuelight_inter_token_latency_seconds_bucket", ",le=\"0.02\"") > 0.0);
    for (name, count) in [
        ("cuelight_time_to_first_token_seconds", 6.0),
        ("cuelight_request_time_per_output_token_seconds", 6.0),
        ("cuelight_request_duration_seconds", 6.0),
        ("cuelight_request_queue_time_seconds", 6.0),
        ("cuelight_request_prefill_time_seconds", 6.0),
        ("cuelight_request_decode_time_seconds", 6.0),
        ("cuelight_request_inference_time_seconds", 6.0),
        ("cuelight_request_generation_tokens", 6.0),
        ("cuelight_request_max_tokens", 6.0),
        ("cuelight_call_sequences", 3.0),
    ] {
        assert_eq!(model(&format!("{name}_count"), ""), count, "{name}");
    }
    assert_eq!(model("cuelight_call_sequences_sum", ""), 6.0);
    let computed = model("cuelight_step_rows_sum", "");
    assert!(model("cuelight_step_prefill_rows_sum", "") <= computed);
    assert_eq!(model("cuelight_step_rows_count", ""), model("cuelight_step_prefill_rows_count", ""));
    for idle in ["cuelight_requests_running", "cuelight_kv_blocks_used", "cuelight_kv_usage_ratio"] {
        assert_eq!(model(idle, REPLICA), 0.0, "{idle}");
    }
    assert!(model("cuelight_kv_blocks_cached", REPLICA) > 0.0);
    assert_eq!(model("cuelight_kv_blocks_total", REPLICA), 256.0);
    assert_eq!(model("cuelight_sequences_capacity", REPLICA), 16.0);
    assert_eq!(model("cuelight_model_state", ",state=\"ready\""), 1.0);
    assert_eq!(model("cuelight_model_state", ",state=\"loading\""), 0.0);
}

/// With two slots the second prompt takes that of the first one's checkpoint, which goes to host memory and comes back.
#[tokio::test(start_paused = true)]
async fn recurrent_states_in_host_memory_are_counted() {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let options = ServerOptions { metrics: Some(exposition), ..ServerOptions::new(MODEL) };
    let kv_store = KvStoreOptions { host_bytes: 1 << 20, ..KvStoreOptions::default() };
    let runtime = RuntimeOptions { model_id: MODEL.into(), kv_store, ..RuntimeOptions::default() };
    let mut model = model();
    model.limits.state_slots = 2;
    let server = Server::start_with(model, runtime, options).await;
    for word in ["hello ", "other ", "hello "] {
        let body = json!({ "model": MODEL, "prompt": word.repeat(10), "max_tokens": 2, "speculation": false });
        server.ok("/v1/completions", &body).await;
    }
    server.settle().await;
    let text = server.get("/metrics").await.text();
    let samples = samples(&text);
    let of_replica = |name: &str| samples[&*format!("{name}{{model=\"{MODEL}\",replica=\"0\",tier=\"host\"}}")];
    let of_model = |name: &str| samples[&*format!("{name}{{model=\"{MODEL}\",tier=\"host\"}}")];
    assert_eq!(of_replica("cuelight_kv_tier_capacity_bytes"), f64::from(1 << 20));
    assert!(of_replica("cuelight_kv_tier_states") >= 1.0 && of_replica("cuelight_kv_tier_bytes") >= 8.0);
    assert!(of_model("cuelight_kv_tier_stored_states_total") >= 1.0);
    assert_eq!(of_model("cuelight_kv_tier_loaded_states_total"), 1.0);
    assert_eq!(of_model("cuelight_kv_tier_loaded_blocks_total"), 0.0, "the blocks are on the device");
}

#[tokio::test(start_paused = true)]
async fn vllm_aliases_are_served_on_request_with_the_same_values() {
    let text = scrape_after(2, Compat::Vllm).await;
    for alias in alias_names() {
        assert!(text.contains(&format!("\n{alias}")), "{alias} is not in\n{text}");
    }
    let samples = samples(&text);
    let both = |native: &str, vllm: &str| {
        let native = samples[format!("{native}{{model=\"{MODEL}\"}}").as_str()];
        assert_eq!(native, samples[format!("{vllm}{{model_name=\"{MODEL}\",engine=\"0\"}}").as_str()], "{vllm}");
        native
    };
    assert_eq!(both("cuelight_generation_tokens_total", "vllm:generation_tokens_total"), 32.0);
    assert_eq!(both("cuelight_time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count"), 4.0);
    let success =
        format!("vllm:request_success_total{{model_name=\"{MODEL}\",finished_reason=\"length\",engine=\"0\"}}");
    assert_eq!(samples[success.as_str()], 4.0);
    let native = scrape_after(1, Compat::None).await;
    assert!(!native.contains("vllm:"), "{native}");
}

/// The rules of `promtool check metrics`, so that a new metric is checked without it.
#[test]
fn native_names_follow_prometheus_rules() {
    for metric in METRICS {
        let name = metric.name;
        let first = name.split('_').next().unwrap();
        assert!(["cuelight", "process"].contains(&first), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        // A gauge for the exporter, and untyped in the scraped text.
        if name != "cuelight_kv_blocks_total" {
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        }
        for reserved in ["_bucket", "_sum", "_count", "_milliseconds", "_ms"] {
            assert!(!name.ends_with(reserved), "{name}");
        }
        if let Kind::Histogram(edges) = metric.kind {
            assert!(edges.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
        }
    }
    for edge in [0.001, 0.002, 0.005] {
        let latency = METRICS.iter().find(|metric| metric.name == "cuelight_inter_token_latency_seconds").unwrap();
        assert!(matches!(latency.kind, Kind::Histogram(edges) if edges.contains(&edge)));
    }
}

/// Prints the time of a scrape with all metrics of `models` models registered, and with the recordings of a quarter second
/// at 20,000 tokens per second not yet in their buckets. The limit also holds for unoptimized builds.
#[test]
fn rendering_is_quick_with_full_histograms() {
    for (models, compat) in [(1, Compat::None), (1, Compat::Vllm), (4, Compat::Vllm)] {
        let (recorder, exposition) = Exposition::new(compat).unwrap();
        metrics::with_local_recorder(&recorder, || {
            exposition.start();
            for model in 0..models {
                fill(&format!("model-{model}"));
            }
        });
        exposition.run_upkeep();
        let mut times: Vec<Duration> = (0..50)
            .map(|_| {
                metrics::with_local_recorder(&recorder, || record_tokens(5000));
                let started = Instant::now();
                assert!(!exposition.render().is_empty());
                started.elapsed()
            })
            .collect();
        times.sort_unstable();
        let bytes = exposition.render().len();
        println!("{models} models, {compat:?}: median {:?}, longest {:?}, {bytes} bytes", times[25], times[49]);
        // Other programs slow most of them down on a busy machine.
        assert!(times[5] < Duration::from_millis(50), "{:?}", times[5]);
    }
}

/// Records a series for about every label value of every metric.
fn fill(model: &str) {
    for metric in METRICS {
        let varies = metric.labels.iter().any(|label| !["model", "replica"].contains(label));
        let variants = if varies { 7 } else { 1 };
        for variant in 0..variants {
            let value = |label: &str| match label {
                "model" => model.to_owned(),
                "replica" => "0".to_owned(),
                _ => format!("value-{variant}"),
            };
            let labels: Vec<(&str, String)> = metric.labels.iter().map(|label| (*label, value(label))).collect();
            match metric.kind {
                Kind::Counter => metrics::counter!(metric.name, &labels).increment(12_345),
                Kind::Gauge => metrics::gauge!(metric.name, &labels).set(67.0),
                Kind::Histogram(_) => (0..1000).for_each(|i| {
                    metrics::histogram!(metric.name, &labels).record(f64::from(i) / 100.0);
                }),
            }
        }
    }
}

fn record_tokens(tokens: usize) {
    let latency = metrics::histogram!("cuelight_inter_token_latency_seconds", "model" => "model-0");
    (0..tokens).for_each(|token| latency.record(0.001 * (token % 37) as f64));
}

const OPERATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations");

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{OPERATIONS}/{file}")).unwrap()
}

#[test]
fn the_operators_manual_lists_every_metric() {
    let text = read("README.md");
    for table in [catalogue::markdown(), vllm::markdown()] {
        assert!(text.contains(&table), "docs/operations/README.md needs this table:\n{table}");
    }
}

/// Words of `text` that begin with `cuelight_`.
fn metric_names(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.strip_prefix("cuelight_").is_some_and(|rest| !rest.is_empty()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn dashboard_alerts_and_manual_use_only_existing_metrics() {
    let scraped = scrape_after(1, Compat::None).await;
    let exists = |name: &str| {
        METRICS.iter().any(|metric| match metric.kind {
            Kind::Histogram(_) => {
                name.strip_prefix(metric.name).is_some_and(|suffix| ["", "_bucket", "_sum", "_count"].contains(&suffix))
            }
            _ => metric.name == name,
        })
    };
    for file in ["README.md", "alerts.yml", "alerts_test.yml", "grafana-dashboard.json"] {
        let text = read(file).replace('\\', "");
        let unknown: Vec<&str> = metric_names(&text).into_iter().filter(|name| !exists(name)).collect();
        assert_eq!(unknown, [""; 0], "in {file}");
        // Label values are checked, too: an alert on a misspelled value would never fire.
        for label in ["reason", "state", "source", "actor"] {
            let opening = format!("{label}=\"");
            for rest in text.split(&opening).skip(1) {
                let value = rest.split('"').next().unwrap();
                assert!(scraped.contains(&format!("{opening}{value}\"")), "{opening}{value}\" in {file}");
            }
        }
    }
}

#[test]
fn grafana_can_import_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&read("grafana-dashboard.json")).unwrap();
    assert_eq!(dashboard["title"], "Cuelight");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids: Vec<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(targets.iter().all(|target| !target["expr"].as_str().unwrap().is_empty()), "{title}");
        let at = &panel["gridPos"];
        assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24, "{title}");
    }
}
