//! The time of a test by op: a table of all ops with their totals.

use std::collections::BTreeMap;
use std::time::Duration;

use cuelight_engine::profile::{Cost, OpSpan};
use cuelight_engine::roofline::Roofline;
use serde_json::{Value, json};

/// The total of one kind of op: the same op with the same weight, over all layers.
#[derive(Debug, Clone, Default, PartialEq)]
struct Row {
    calls: u64,
    elapsed: Duration,
    /// The longest call. Far above the mean, another process had the CPU.
    longest: Duration,
    cost: Cost,
    /// The minimum time of the calls by the measured limits of this machine.
    least: Option<Duration>,
}

/// The ops of a test's repetitions, and the time of the repetitions.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Names and totals, by time, the longest first.
    rows: Vec<(String, Row)>,
    /// The time of all repetitions.
    elapsed: Duration,
}

/// The row for time outside of ops.
const BETWEEN: &str = "between ops";

impl Profile {
    /// Adds up the ops of repetitions that took `elapsed` together.
    #[must_use]
    pub fn new(ops: &[OpSpan], elapsed: Duration, roofline: Option<&Roofline>) -> Self {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for OpSpan { op, elapsed, cost, .. } in ops {
            let row = rows.entry(op.kind()).or_default();
            row.calls += 1;
            row.elapsed += *elapsed;
            row.longest = row.longest.max(*elapsed);
            row.cost += *cost;
            if let Some(roofline) = roofline {
                *row.least.get_or_insert_default() += roofline.least_time(cost.bytes(), cost);
            }
        }
        let measured: Duration = rows.values().map(|row| row.elapsed).sum();
        let mut rows: Vec<(String, Row)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.elapsed));
        let between = Row { elapsed: elapsed.saturating_sub(measured), ..Row::default() };
        rows.push((BETWEEN.to_owned(), between));
        Profile { rows, elapsed }
    }

    /// A Markdown table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = "| op | calls | ms | longest | share | GB/s | GOPS | roofline |\n\
                        | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
            .to_owned();
        for (name, row) in &self.rows {
            let share = percent(self.share(row));
            let milliseconds = row.elapsed.as_secs_f64() * 1e3;
            let longest = if row.calls > 0 { format!("{:.3}", row.longest.as_secs_f64() * 1e3) } else { String::new() };
            let roofline = row.roofline().map(percent).unwrap_or_default();
            let rates = if row.calls > 0 { (row.gigabytes(), row.gigaoperations()) } else { (0.0, 0.0) };
            let (bytes, operations) = (rate(rates.0), rate(rates.1));
            let calls = row.calls;
            text.push_str(&format!(
                "| {name} | {calls} | {milliseconds:.2} | {longest} | {share} | {bytes} | {operations} | {roofline} |\n"
            ));
        }
        text
    }

    /// A JSON list.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |(name, row): &(String, Row)| {
            let mut object = json!({
                "op": name,
                "calls": row.calls,
                "ns": row.elapsed.as_nanos() as u64,
                "longest_ns": row.longest.as_nanos() as u64,
                "share": self.share(row),
                "bytes": row.cost.bytes(),
                "operations": row.cost.operations(),
                "gb_per_s": row.gigabytes(),
                "gops": row.gigaoperations(),
            });
            if let Some(roofline) = row.roofline() {
                object["roofline_share"] = json!(roofline);
            }
            object
        };
        self.rows.iter().map(row).collect()
    }

    fn share(&self, row: &Row) -> f64 {
        row.elapsed.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Row {
    fn gigabytes(&self) -> f64 {
        giga(self.cost.bytes(), self.elapsed)
    }

    fn gigaoperations(&self) -> f64 {
        giga(self.cost.operations(), self.elapsed)
    }

    fn roofline(&self) -> Option<f64> {
        Some(self.least?.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9))
    }
}

/// A rate per second, in billions.
#[must_use]
pub fn giga(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64().max(1e-9) / 1e9
}

/// "41 %".
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A rate with about three digits; empty for 0.
#[must_use]
pub fn rate(giga: f64) -> String {
    match giga {
        0.0 => String::new(),
        ..9.995 => format!("{giga:.2}"),
        ..99.95 => format!("{giga:.1}"),
        _ => format!("{giga:.0}"),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::load::Kernel;
    use cuelight_engine::profile::OpLabel;

    use super::*;
    use cuelight_engine::roofline::Worker;

    fn span(weights: &str, layer: u32, milliseconds: u64, bytes: u64) -> OpSpan {
        let op = OpLabel { op: "linear", weights: weights.into(), layer: Some(layer) };
        let cost = Cost { memory_bytes: bytes, integer_operations: 4 * bytes, ..Cost::default() };
        OpSpan { op: op.into(), start: Duration::ZERO, elapsed: Duration::from_millis(milliseconds), cost }
    }

    fn profile() -> Profile {
        let roofline = Roofline {
            worker: Worker::Cpu(Kernel::Avx2Integer, 1),
            matrix_peak: None,
            memory_bandwidth: 4e9,
            cache_bandwidth: 8e9,
            integer_peak: Some(1e12),
            float_peak: 1e11,
        };
        let ops = [span("a", 0, 10, 8_000_000), span("b", 0, 5, 2_000_000), span("a", 1, 10, 8_000_000)];
        Profile::new(&ops, Duration::from_millis(50), Some(&roofline))
    }

    #[test]
    fn ops_are_summed_over_layers_and_the_rest_is_between_ops() {
        let expected = "\
| op | calls | ms | longest | share | GB/s | GOPS | roofline |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| linear a | 2 | 20.00 | 10.000 | 40 % | 0.80 | 3.20 | 20 % |
| linear b | 1 | 5.00 | 5.000 | 10 % | 0.40 | 1.60 | 10 % |
| between ops | 0 | 25.00 |  | 50 % |  |  |  |
";
        assert_eq!(profile().markdown(), expected);
    }

    #[test]
    fn json_has_the_same_numbers() {
        let list = profile().json();
        assert_eq!(list[0]["op"], "linear a");
        assert_eq!((list[0]["calls"].as_u64(), list[0]["ns"].as_u64()), (Some(2), Some(20_000_000)));
        assert!((list[0]["roofline_share"].as_f64().unwrap() - 0.2).abs() < 1e-9);
        assert!(list[2].get("roofline_share").is_none());
    }
}
