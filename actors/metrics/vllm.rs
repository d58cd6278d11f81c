//! Aliases of the metrics with the names of vLLM, for gateways, autoscalers and dashboards that use those.
//!
//! Nothing is recorded twice: the aliases are created from the rendered text of the native metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::catalogue::*;

/// A native metric with another name.
struct Alias {
    native: &'static str,
    vllm: &'static str,
    /// Labels with another name in vLLM. `None` removes the label, and the values that differ only in it are added up.
    labels: &'static [(&'static str, Option<&'static str>)],
    /// Values of these labels that differ in vLLM.
    values: &'static [(&'static str, &'static str)],
}

/// An alias that differs only in the name.
const fn same(native: &'static str, vllm: &'static str) -> Alias {
    Alias { native, vllm, labels: &[], values: &[] }
}

const ALIASES: &[Alias] = &[
    same(REQUESTS_RUNNING, "vllm:num_requests_running"),
    Alias { labels: &[("reason", None)], ..same(REQUESTS_WAITING, "vllm:num_requests_waiting") },
    same(REQUESTS_WAITING, "vllm:num_requests_waiting_by_reason"),
    same(KV_USAGE, "vllm:kv_cache_usage_perc"),
    Alias { labels: &[("blocks", Some("num_gpu_blocks"))], ..same(CACHE_CONFIG, "vllm:cache_config_info") },
    Alias { labels: &[("source", None)], ..same(PROMPT_TOKENS, "vllm:prompt_tokens_total") },
    Alias {
        labels: &[("source", Some("source"))],
        values: &[("computed", "local_compute"), ("cached", "local_cache_hit")],
        ..same(PROMPT_TOKENS, "vllm:prompt_tokens_by_source_total")
    },
    same(GENERATION_TOKENS, "vllm:generation_tokens_total"),
    same(PREFIX_CACHE_QUERIES, "vllm:prefix_cache_queries_total"),
    same(PREFIX_CACHE_HITS, "vllm:prefix_cache_hits_total"),
    Alias { labels: &[("source", None)], ..same(DRAFTS, "vllm:spec_decode_num_drafts_total") },
    Alias { labels: &[("source", None)], ..same(DRAFT_TOKENS, "vllm:spec_decode_num_draft_tokens_total") },
    Alias { labels: &[("source", None)], ..same(ACCEPTED_TOKENS, "vllm:spec_decode_num_accepted_tokens_total") },
    same(PREEMPTIONS, "vllm:num_preemptions_total"),
    Alias {
        labels: &[("reason", Some("finished_reason"))],
        values: &[
            ("stop_token", "stop"),
            ("stop_string", "stop"),
            ("cancelled", "abort"),
            ("stalled_client", "abort"),
            ("shutting_down", "abort"),
            ("engine_error", "error"),
            ("constraint_failed", "error"),
        ],
        ..same(REQUESTS_FINISHED, "vllm:request_success_total")
    },
    same(REJECTIONS, "vllm:admission_rejections_total"),
    same(TIME_TO_FIRST_TOKEN, "vllm:time_to_first_token_seconds"),
    same(INTER_TOKEN_LATENCY, "vllm:inter_token_latency_seconds"),
    same(TIME_PER_OUTPUT_TOKEN, "vllm:request_time_per_output_token_seconds"),
    same(REQUEST_DURATION, "vllm:e2e_request_latency_seconds"),
    same(QUEUE_TIME, "vllm:request_queue_time_seconds"),
    same(PREFILL_TIME, "vllm:request_prefill_time_seconds"),
    same(DECODE_TIME, "vllm:request_decode_time_seconds"),
    same(INFERENCE_TIME, "vllm:request_inference_time_seconds"),
    same(REQUEST_PROMPT_TOKENS, "vllm:request_prompt_tokens"),
    same(REQUEST_GENERATION_TOKENS, "vllm:request_generation_tokens"),
    same(REQUEST_MAX_TOKENS, "vllm:request_params_max_tokens"),
    same(CALL_SEQUENCES, "vllm:request_params_n"),
    same(STEP_ROWS, "vllm:iteration_tokens_total"),
];

/// The names of all aliases.
pub fn alias_names() -> impl Iterator<Item = &'static str> {
    ALIASES.iter().map(|alias| alias.vllm)
}

/// All aliases as a Markdown table, for `docs/operations/`.
#[must_use]
pub fn markdown() -> String {
    let mut text = "| vLLM's name | Made of |\n| --- | --- |\n".to_owned();
    for Alias { native, vllm, .. } in ALIASES {
        let _ = writeln!(text, "| `{vllm}` | `{native}` |");
    }
    let _ = writeln!(text, "| `{LORA_INFO}` | `{ADAPTER_REQUESTS}`, `{ADAPTER_SLOTS}` |");
    text
}

/// The gauge of the adapters of a model, for gateways that prefer a server that has the adapter of a request in memory. Its labels
/// are the names, and its value is the time at which they were read.
const LORA_INFO: &str = "vllm:lora_requests_info";

/// Appends the aliases of all metrics in `native`, which is in Prometheus text format, at a time in seconds since 1970.
pub fn append_aliases(native: &mut String, now: f64) {
    let mut aliases = String::with_capacity(native.len());
    let mut adapters = BTreeMap::new();
    for family in native.split("\n\n").filter_map(Family::parse) {
        read_adapters(&family, &mut adapters);
        for alias in ALIASES.iter().filter(|alias| alias.native == family.name) {
            alias.write(&family, &mut aliases);
        }
    }
    write_adapters(&adapters, now, &mut aliases);
    native.push_str(&aliases);
}

/// The adapters of a model, all replicas together.
#[derive(Default)]
struct AdaptersOfModel<'a> {
    slots: f64,
    running: BTreeSet<&'a str>,
    waiting: BTreeSet<&'a str>,
}

/// Adds what a metric says about adapters, by model.
fn read_adapters<'a>(family: &Family<'a>, adapters: &mut BTreeMap<&'a str, AdaptersOfModel<'a>>) {
    let is_slots = family.name == ADAPTER_SLOTS;
    if !is_slots && family.name != ADAPTER_REQUESTS {
        return;
    }
    for sample in &family.samples {
        let label = |wanted: &str| sample.labels().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value);
        let of_model: &mut AdaptersOfModel<'_> = adapters.entry(label("model")).or_default();
        let (value, name) = (sample.value.parse().unwrap_or(0.0), label("adapter"));
        if is_slots {
            // Replicas share their adapters.
            of_model.slots = of_model.slots.max(value);
        } else if value > 0.0 && !name.is_empty() {
            let names = if label("state") == "running" { &mut of_model.running } else { &mut of_model.waiting };
            names.insert(name);
        }
    }
}

/// Writes [`LORA_INFO`] for each model that may have adapters.
fn write_adapters(adapters: &BTreeMap<&str, AdaptersOfModel<'_>>, now: f64, text: &mut String) {
    let with_slots = || adapters.iter().filter(|(_, of_model)| of_model.slots > 0.0);
    if with_slots().next().is_none() {
        return;
    }
    let _ =
        writeln!(text, "# HELP {LORA_INFO} The adapters of requests: made of {ADAPTER_REQUESTS} and {ADAPTER_SLOTS}.");
    let _ = writeln!(text, "# TYPE {LORA_INFO} gauge");
    for (model, AdaptersOfModel { slots, running, waiting }) in with_slots() {
        let [running, waiting] = [running, waiting].map(|names| names.iter().copied().collect::<Vec<_>>().join(","));
        let _ = writeln!(
            text,
            "{LORA_INFO}{{model_name=\"{model}\",max_lora=\"{slots}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {now}"
        );
    }
    text.push('\n');
}

/// The lines of a metric.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

/// A line `name{labels} value`.
struct Sample<'a> {
    name: &'a str,
    /// The text between the braces.
    labels: &'a str,
    value: &'a str,
}

impl<'a> Family<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let lines = text.lines();
        let declared = lines.clone().find_map(|line| line.strip_prefix("# TYPE "))?;
        let (name, kind) = declared.split_once(' ')?;
        let samples = lines.filter(|line| !line.starts_with('#')).filter_map(Sample::parse).collect();
        Some(Family { name, kind, samples })
    }
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (head, value) = line.rsplit_once(' ')?;
        let (name, labels) = head.split_once('{').unwrap_or((head, ""));
        Some(Sample { name, labels: labels.strip_suffix('}').unwrap_or(labels), value })
    }

    /// Names and values of the labels. The values are still escaped.
    fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (name, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
            let mut escaped = false;
            let end = quoted.bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })?;
            rest = &quoted[end + 1..];
            Some((name, &quoted[..end]))
        })
    }
}

impl Alias {
    fn write(&self, family: &Family<'_>, text: &mut String) {
        let _ = writeln!(text, "# HELP {} The same as {}.", self.vllm, self.native);
        let _ = writeln!(text, "# TYPE {} {}", self.vllm, family.kind);
        if self.labels.is_empty() {
            for sample in &family.samples {
                self.write_series(family, sample, text);
                text.push(' ');
                text.push_str(sample.value);
                text.push('\n');
            }
        } else {
            self.write_sums(family, text);
        }
        text.push('\n');
    }

    /// Adds up the samples that have equal labels after relabelling.
    fn write_sums(&self, family: &Family<'_>, text: &mut String) {
        let mut sums: Vec<(String, f64)> = Vec::new();
        for sample in &family.samples {
            let mut series = String::new();
            self.write_series(family, sample, &mut series);
            let value: f64 = sample.value.parse().unwrap_or(f64::NAN);
            match sums.iter_mut().find(|(other, _)| *other == series) {
                Some((_, sum)) => *sum += value,
                None => sums.push((series, value)),
            }
        }
        for (series, sum) in sums {
            let _ = writeln!(text, "{series} {sum}");
        }
    }

    /// Writes `name{labels}` with the names of vLLM.
    fn write_series(&self, family: &Family<'_>, sample: &Sample<'_>, text: &mut String) {
        text.push_str(self.vllm);
        text.push_str(sample.name.strip_prefix(family.name).unwrap_or_default());
        text.push('{');
        for (name, value) in sample.labels() {
            let (name, value) = match self.labels.iter().find(|(native, _)| *native == name) {
                Some((_, None)) => continue,
                Some((_, Some(there))) => {
                    (*there, self.values.iter().find(|(native, _)| *native == value).map_or(value, |(_, there)| there))
                }
                None if name == "model" => ("model_name", value),
                None if name == "replica" => ("engine", value),
                None => (name, value),
            };
            for part in [name, "=\"", value, "\","] {
                text.push_str(part);
            }
        }
        // vLLM has a label for the engine. Metrics of all replicas together are reported for the first engine.
        if sample.labels().any(|(name, _)| name == "replica") {
            text.pop();
        } else {
            text.push_str("engine=\"0\"");
        }
        text.push('}');
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    const NATIVE: &str = "\
# HELP cuelight_requests_waiting help
# TYPE cuelight_requests_waiting gauge
cuelight_requests_waiting{model=\"a\",replica=\"0\",reason=\"capacity\"} 2
cuelight_requests_waiting{model=\"a\",replica=\"0\",reason=\"deferred\"} 3
cuelight_requests_waiting{model=\"a\",replica=\"1\",reason=\"deferred\"} 6
cuelight_requests_waiting{model=\"b, \\\"c\\\" }\",replica=\"0\",reason=\"deferred\"} 4

# TYPE cuelight_requests_finished_total counter
cuelight_requests_finished_total{model=\"a\",reason=\"stop_token\"} 1
cuelight_requests_finished_total{model=\"a\",reason=\"stop_string\"} 5
cuelight_requests_finished_total{model=\"a\",reason=\"length\"} 7

# TYPE cuelight_step_rows histogram
cuelight_step_rows_bucket{model=\"a\",le=\"1\"} 3
cuelight_step_rows_sum{model=\"a\"} 8.5
cuelight_step_rows_count{model=\"a\"} 3

# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5
";

    #[test]
    fn aliases_rename_labels_and_add_up_values_without_the_removed_ones() {
        let mut text = NATIVE.to_owned();
        append_aliases(&mut text, 1.5);
        let aliases: Vec<&str> = text[NATIVE.len()..].lines().filter(|line| line.starts_with("vllm")).collect();
        assert_eq!(
            aliases,
            [
                "vllm:num_requests_waiting{model_name=\"a\",engine=\"0\"} 5",
                "vllm:num_requests_waiting{model_name=\"a\",engine=\"1\"} 6",
                "vllm:num_requests_waiting{model_name=\"b, \\\"c\\\" }\",engine=\"0\"} 4",
                "vllm:num_requests_waiting_by_reason{model_name=\"a\",engine=\"0\",reason=\"capacity\"} 2",
                "vllm:num_requests_waiting_by_reason{model_name=\"a\",engine=\"0\",reason=\"deferred\"} 3",
                "vllm:num_requests_waiting_by_reason{model_name=\"a\",engine=\"1\",reason=\"deferred\"} 6",
                "vllm:num_requests_waiting_by_reason{model_name=\"b, \\\"c\\\" }\",engine=\"0\",reason=\"deferred\"} 4",
                "vllm:request_success_total{model_name=\"a\",finished_reason=\"stop\",engine=\"0\"} 6",
                "vllm:request_success_total{model_name=\"a\",finished_reason=\"length\",engine=\"0\"} 7",
                "vllm:iteration_tokens_total_bucket{model_name=\"a\",le=\"1\",engine=\"0\"} 3",
                "vllm:iteration_tokens_total_sum{model_name=\"a\",engine=\"0\"} 8.5",
                "vllm:iteration_tokens_total_count{model_name=\"a\",engine=\"0\"} 3",
            ]
        );
    }

    #[test]
    fn the_adapters_of_all_replicas_are_one_line_for_each_model() {
        let mut text = "\
# TYPE cuelight_adapter_slots gauge
cuelight_adapter_slots{model=\"m\",replica=\"0\"} 4
cuelight_adapter_slots{model=\"m\",replica=\"1\"} 4
cuelight_adapter_slots{model=\"plain\",replica=\"0\"} 0

# TYPE cuelight_adapter_requests gauge
cuelight_adapter_requests{model=\"m\",replica=\"0\",adapter=\"\",state=\"running\"} 7
cuelight_adapter_requests{model=\"m\",replica=\"0\",adapter=\"b\",state=\"running\"} 1
cuelight_adapter_requests{model=\"m\",replica=\"1\",adapter=\"a\",state=\"running\"} 2
cuelight_adapter_requests{model=\"m\",replica=\"0\",adapter=\"a\",state=\"waiting\"} 0
cuelight_adapter_requests{model=\"m\",replica=\"1\",adapter=\"b\",state=\"waiting\"} 3
"
        .to_owned();
        append_aliases(&mut text, 1.5);
        let info: Vec<&str> = text.lines().filter(|line| line.starts_with(LORA_INFO)).collect();
        let expected = r#"vllm:lora_requests_info{model_name="m",max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="b"} 1.5"#;
        assert_eq!(info, [expected]);
    }

    #[test]
    fn every_alias_has_a_native_metric() {
        for alias in ALIASES {
            let native = METRICS.iter().find(|metric| metric.name == alias.native).unwrap();
            assert!(alias.labels.iter().all(|(label, _)| native.labels.contains(label)), "{}", alias.vllm);
        }
    }
}
