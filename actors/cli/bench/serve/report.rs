//! The results as text, Markdown or JSON.
//!
//! A single round of a single server is printed in full. Otherwise the medians over the rounds are printed, with a column
//! for each server and the ratios to the first server.

use serde::Serialize;
use serde_json::{Value, json};

use super::record::Record;
use super::round::Round;
use super::summary::{Goodput, Objective, Spread, Summary, median};
use crate::cli::terminal::{Align, markdown, number, table};

/// The output format of `cuelight bench serve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// JSON.
    Json,
    /// Markdown tables.
    Md,
}

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Start of the first round, as RFC 3339.
    pub started: String,
    /// The workload in one line, for text output.
    #[serde(skip)]
    pub workload: String,
    /// The workload, for JSON.
    pub settings: Value,
    /// The servers, in the order of the command line.
    pub servers: Vec<Measured>,
}

/// The results of one server.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// The address.
    pub url: String,
    /// The model.
    pub model: String,
    /// The rounds.
    pub rounds: Vec<MeasuredRound>,
}

/// The figures of a round, and with --detail its requests.
#[derive(Debug, Serialize)]
pub struct MeasuredRound {
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// The requests, with --detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<Value>>,
}

impl MeasuredRound {
    /// The figures of a round.
    #[must_use]
    pub fn of(round: &Round, objectives: &[Objective], detail: bool) -> Self {
        let requests = detail.then(|| round.records.iter().map(request).collect());
        MeasuredRound { summary: Summary::of(round, objectives), requests }
    }
}

fn request(record: &Record) -> Value {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    json!({
        "index": record.index,
        "due_ms": record.due.map(milliseconds),
        "sent_ms": milliseconds(record.sent),
        "ttft_ms": record.time_to_first_token().map(milliseconds),
        "e2e_ms": milliseconds(record.duration()),
        "itl_ms": record.gaps().map(milliseconds).collect::<Vec<f64>>(),
        "prompt_tokens": record.usage.map(|usage| usage.prompt_tokens),
        "cached_tokens": record.usage.and_then(|usage| usage.cached_tokens()),
        "output_tokens": record.output_tokens(),
        "failure": record.failure.as_ref().map(|failure| json!({ "kind": failure.kind(), "message": failure.to_string() })),
    })
}

/// A row in the table of medians and ratios.
struct Figure {
    name: &'static str,
    of: fn(&Summary) -> Option<f64>,
}

const FIGURES: [Figure; 15] = [
    Figure { name: "requests/s", of: |summary| Some(summary.requests_per_second) },
    Figure { name: "output tok/s", of: |summary| Some(summary.output_tokens_per_second) },
    Figure { name: "total tok/s", of: |summary| Some(summary.total_tokens_per_second) },
    Figure { name: "decode tok/s", of: |summary| summary.decode_tokens_per_second },
    Figure { name: "ttft p50 ms", of: |summary| Some(summary.ttft_ms?.p50) },
    Figure { name: "ttft p95 ms", of: |summary| Some(summary.ttft_ms?.p95) },
    Figure { name: "itl p50 ms", of: |summary| Some(summary.itl_ms?.p50) },
    Figure { name: "itl p95 ms", of: |summary| Some(summary.itl_ms?.p95) },
    Figure { name: "itl p99 ms", of: |summary| Some(summary.itl_ms?.p99) },
    Figure { name: "tpot p50 ms", of: |summary| Some(summary.tpot_ms?.p50) },
    Figure { name: "e2e p50 ms", of: |summary| Some(summary.e2e_ms?.p50) },
    Figure { name: "e2e p95 ms", of: |summary| Some(summary.e2e_ms?.p95) },
    Figure { name: "delay p95 ms", of: |summary| Some(summary.schedule_delay_ms?.p95) },
    Figure { name: "goodput requests/s", of: |summary| Some(summary.goodput.as_ref()?.requests_per_second) },
    Figure { name: "failed", of: |summary| Some(summary.failed as f64) },
];

impl Measured {
    /// The median over the rounds.
    fn median(&self, figure: &Figure) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| (figure.of)(&round.summary)).collect())
    }
}

impl Report {
    /// Answered requests in all rounds of all servers.
    #[must_use]
    pub fn succeeded(&self) -> usize {
        self.servers.iter().flat_map(|server| &server.rounds).map(|round| round.summary.succeeded).sum()
    }

    /// Everything as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialization fails only for keys that are not strings, and there are none.
        serde_json::to_string_pretty(self).map_or_else(|_| String::new(), |text| text + "\n")
    }

    /// The report in this format.
    #[must_use]
    pub fn print(&self, format: Format) -> String {
        match (format, self.servers.as_slice()) {
            (Format::Json, _) => self.to_json(),
            (_, [server]) if server.rounds.len() <= 1 => self.one_round(format, server),
            _ => self.medians(format),
        }
    }

    fn one_round(&self, format: Format, server: &Measured) -> String {
        let Some(MeasuredRound { summary, .. }) = server.rounds.first() else { return String::new() };
        let latencies = [
            ("ttft", summary.ttft_ms),
            ("itl", summary.itl_ms),
            ("tpot", summary.tpot_ms),
            ("e2e", summary.e2e_ms),
            ("delay", summary.schedule_delay_ms),
        ];
        let rows: Vec<Vec<String>> =
            latencies.iter().filter_map(|(name, spread)| Some(latency_row(name, spread.as_ref()?))).collect();
        let columns = ["ms", "mean", "p50", "p95", "p99", "max"].map(|name| (name, alignment(name == "ms")));
        let facts = Table { columns: vec![("", Align::Left), ("", Align::Left)], rows: facts(summary) };
        let latencies = Table { columns: columns.to_vec(), rows };
        let parts = [self.title(server), facts.print(format), latencies.print(format), failures(server, format)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    }

    fn title(&self, server: &Measured) -> String {
        format!("{}, model {}\n{}\n", server.url, server.model, self.workload)
    }

    fn medians(&self, format: Format) -> String {
        let names: Vec<String> = (1..=self.servers.len()).map(|number| format!("[{number}]")).collect();
        let ratios: Vec<String> = (2..=self.servers.len()).map(|number| format!("[{number}]/[1]")).collect();
        let mut columns = vec![("median", Align::Left)];
        columns.extend(names.iter().chain(&ratios).map(|name| (name.as_str(), Align::Right)));
        let rows = FIGURES.iter().filter_map(|figure| self.median_row(figure)).collect();
        let rounds = self.servers.iter().map(|server| server.rounds.len()).min().unwrap_or(0);
        let servers = names.iter().zip(&self.servers);
        let servers: String =
            servers.map(|(name, server)| format!("{name} {}, model {}\n", server.url, server.model)).collect();
        let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
        let title = format!("{servers}{}, {rounds}\n", self.workload);
        let failures: String = self.servers.iter().map(|server| failures(server, format)).collect();
        let parts = [title, Table { columns, rows }.print(format), failures];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// A figure of all servers and the ratios to the first; `None` if no server has it.
    fn median_row(&self, figure: &Figure) -> Option<Vec<String>> {
        let medians: Vec<Option<f64>> = self.servers.iter().map(|server| server.median(figure)).collect();
        if medians.iter().all(Option::is_none) {
            return None;
        }
        let first = medians.first().copied().flatten().filter(|&first| first > 0.0);
        let ratio = |median: &Option<f64>| Some(format!("{:.2}", (*median)? / first?));
        let values = medians.iter().map(|median| median.map_or_else(|| "-".to_owned(), number));
        let ratios = medians.iter().skip(1).map(|median| ratio(median).unwrap_or_else(|| "-".to_owned()));
        Some([figure.name.to_owned()].into_iter().chain(values).chain(ratios).collect())
    }
}

/// The summary of a round, one row per fact.
fn facts(summary: &Summary) -> Vec<Vec<String>> {
    let unfinished =
        if summary.unfinished > 0 { format!(", {} unfinished", summary.unfinished) } else { String::new() };
    let requests = format!(
        "{} answered, {} failed{unfinished} in {} s, at most {} in flight",
        summary.succeeded,
        summary.failed,
        number(summary.seconds),
        summary.peak_concurrency
    );
    let decode = summary.decode_tokens_per_second.map(|speed| format!(", {} while decoding", number(speed)));
    let throughput = format!(
        "{} requests/s, {} output tok/s, {} with prompts{}",
        number(summary.requests_per_second),
        number(summary.output_tokens_per_second),
        number(summary.total_tokens_per_second),
        decode.unwrap_or_default()
    );
    let cached = summary.cached_tokens.map(|tokens| format!(" ({tokens} cached)")).unwrap_or_default();
    let counted = if summary.counted_by_server { "" } else { "; counted in chunks, as the server reports no tokens" };
    let tokens = format!("{} of prompts{cached}, {} of answers{counted}", summary.prompt_tokens, summary.output_tokens);
    let mut facts = vec![("requests", requests), ("throughput", throughput), ("tokens", tokens)];
    if let Some(goodput) = &summary.goodput {
        facts.push(("goodput", goodput_fact(goodput)));
    }
    facts.into_iter().map(|(name, fact)| vec![name.to_owned(), fact]).collect()
}

fn goodput_fact(goodput: &Goodput) -> String {
    let limits = goodput.objectives.iter();
    let limits: Vec<String> =
        limits.map(|objective| format!("{} ≤ {} ms", objective.latency.name(), objective.limit_ms)).collect();
    let (rate, percent) = (number(goodput.requests_per_second), goodput.share * 100.0);
    format!("{rate} requests/s, {percent:.1} % of all, with {}", limits.join(", "))
}

fn latency_row(name: &str, spread: &Spread) -> Vec<String> {
    let values = [spread.mean, spread.p50, spread.p95, spread.p99, spread.max].map(number);
    [name.to_owned()].into_iter().chain(values).collect()
}

/// The table of failures of all rounds; empty without failures.
fn failures(server: &Measured, format: Format) -> String {
    let rounds = server.rounds.iter();
    let failures = rounds.flat_map(|round| &round.summary.failures);
    let rows: Vec<Vec<String>> = failures
        .map(|failures| vec![failures.kind.clone(), failures.count.to_string(), failures.example.clone()])
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = vec![("failures", Align::Left), ("count", Align::Right), ("for example", Align::Left)];
    Table { columns, rows }.print(format)
}

fn alignment(is_name: bool) -> Align {
    if is_name { Align::Left } else { Align::Right }
}

/// A table for text and Markdown.
struct Table<'a> {
    columns: Vec<(&'a str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table<'_> {
    fn print(&self, format: Format) -> String {
        match format {
            Format::Md => markdown(&self.columns, &self.rows),
            Format::Text | Format::Json if self.rows.is_empty() => String::new(),
            Format::Text | Format::Json => table(&self.columns, &self.rows).trim_start_matches('\n').to_owned(),
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::super::record::Failure;
    use super::*;

    fn round(chunks: &[u64]) -> MeasuredRound {
        let failed = Record { failure: Some(Failure::Empty), ..Record::streamed(&[]) };
        let round = Round { records: vec![Record::streamed(chunks), failed], peak: 1, ..Round::default() };
        MeasuredRound::of(&round, &["ttft:500".parse().unwrap()], true)
    }

    fn report(servers: Vec<Vec<MeasuredRound>>) -> Report {
        let servers = servers.into_iter().map(|rounds| Measured { url: "http://a".into(), model: "m".into(), rounds });
        Report {
            started: "2026-01-01T00:00:00Z".into(),
            workload: "1 client".into(),
            settings: json!({ "seed": 1 }),
            servers: servers.collect(),
        }
    }

    #[test]
    fn one_round_is_printed_in_full() {
        let text = report(vec![vec![round(&[150, 160, 170])]]).print(Format::Text);
        let expected = "\
http://a, model m
1 client

requests    1 answered, 1 failed in 0.070 s, at most 1 in flight
throughput  14.3 requests/s, 42.9 output tok/s, 42.9 with prompts, 100 while decoding
tokens      0 of prompts, 3 of answers; counted in chunks, as the server reports no tokens
goodput     14.3 requests/s, 50.0 % of all, with ttft ≤ 500 ms

ms    mean   p50   p95   p99   max
ttft  50.0  50.0  50.0  50.0  50.0
itl   10.0  10.0  10.0  10.0  10.0
tpot  10.0  10.0  10.0  10.0  10.0
e2e   70.0  70.0  70.0  70.0  70.0

failures      count  for example
empty answer      1  an answer without a token
";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_server_has_a_column_and_a_ratio_to_the_first() {
        let slow = || round(&[200, 220, 240]);
        let fast = || round(&[150, 160, 170]);
        let report = report(vec![vec![fast(), slow(), fast()], vec![slow(), slow(), slow()]]);
        let text = report.print(Format::Text);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(row("ttft p50").split_whitespace().collect::<Vec<_>>()[3..], ["50.0", "100", "2.00"]);
        assert_eq!(row("itl p50").split_whitespace().last(), Some("2.00"));
        assert!(!text.contains("delay"), "a closed loop has no delay: {text}");
        let markdown = report.print(Format::Md);
        assert!(markdown.contains("| median | [1] | [2] | [2]/[1] |\n| --- | ---: | ---: | ---: |\n"), "{markdown}");
    }

    #[test]
    fn json_has_all_figures_and_requests() {
        let json: Value = serde_json::from_str(&report(vec![vec![round(&[150, 160])]]).print(Format::Json)).unwrap();
        let round = &json["servers"][0]["rounds"][0];
        assert_eq!(round["succeeded"], 1);
        assert_eq!(round["ttft_ms"]["p95"], 50.0);
        assert_eq!(round["goodput"]["objectives"][0]["latency"], "ttft");
        assert_eq!(round["requests"][0]["itl_ms"], json!([10.0]));
        assert_eq!(round["requests"][1]["failure"]["kind"], "empty answer");
        assert_eq!(json["settings"]["seed"], 1);
    }
}
