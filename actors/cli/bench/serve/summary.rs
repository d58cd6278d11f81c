//! The figures of a round: rates, latencies and failures.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::record::Record;
use super::round::Round;

/// The distribution of some values, in their unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The distribution of these values; `None` without values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let at = |quantile| percentile(&values, quantile);
        Some(Spread { count: values.len(), mean, p50: at(0.5), p95: at(0.95), p99: at(0.99), max })
    }

    fn of_times(times: impl Iterator<Item = Duration>) -> Option<Self> {
        Spread::of(times.map(milliseconds).collect())
    }
}

/// A percentile of sorted values, interpolated between its two neighbours as in numpy.
fn percentile(sorted: &[f64], quantile: f64) -> f64 {
    let position = quantile * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// The median; `None` without values.
#[must_use]
pub fn median(values: Vec<f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.p50)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A latency that an objective can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Latency {
    /// Time to first token.
    Ttft,
    /// Inter-token latency: the 95th percentile of the request's gaps.
    Itl,
    /// Mean time per output token.
    Tpot,
    /// From sending to the end.
    E2e,
}

impl Latency {
    const NAMES: [(&'static str, Latency); 4] =
        [("ttft", Latency::Ttft), ("itl", Latency::Itl), ("tpot", Latency::Tpot), ("e2e", Latency::E2e)];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Latency::NAMES.into_iter().find(|(_, latency)| *latency == self).map_or("", |(name, _)| name)
    }

    /// The latency of a request in milliseconds; `None` if the answer is too short or was not streamed.
    fn of(self, record: &Record) -> Option<f64> {
        match self {
            Latency::Ttft => record.time_to_first_token().map(milliseconds),
            Latency::Itl => Spread::of_times(record.gaps()).map(|gaps| gaps.p95),
            Latency::Tpot => record.time_per_output_token().map(milliseconds),
            Latency::E2e => Some(milliseconds(record.duration())),
        }
    }
}

/// A limit for one latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Objective {
    /// The latency.
    pub latency: Latency,
    /// The limit in milliseconds.
    pub limit_ms: f64,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, limit) = text.split_once(':').unwrap_or((text, ""));
        let latency = Latency::NAMES.into_iter().find(|(known, _)| *known == name.trim());
        match (latency, limit.trim().parse::<f64>()) {
            (Some((_, latency)), Ok(limit_ms)) if limit_ms > 0.0 && limit_ms.is_finite() => {
                Ok(Objective { latency, limit_ms })
            }
            _ => Err("write ttft, itl, tpot or e2e, a colon and milliseconds, like ttft:500,itl:50".to_owned()),
        }
    }
}

/// Requests within all objectives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goodput {
    /// The objectives.
    pub objectives: Vec<Objective>,
    /// Share of requests within them, of all requests, answered or not; from 0 to 1.
    pub share: f64,
    /// Requests within them, per second.
    pub requests_per_second: f64,
}

/// The failures of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// `HTTP 429 with Retry-After`.
    pub kind: String,
    /// Number of failures.
    pub count: usize,
    /// The message of one of them.
    pub example: String,
}

/// The figures of a round. Rates and latencies cover answered requests; latencies are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Answered requests.
    pub succeeded: usize,
    /// Requests without a complete answer.
    pub failed: usize,
    /// Requests in flight when the round was interrupted.
    pub unfinished: usize,
    /// Time from the first request to the last end of an answer.
    pub seconds: f64,
    /// Maximum requests in flight.
    pub peak_concurrency: usize,
    /// Prompt tokens; 0 if the server reports no counts.
    pub prompt_tokens: usize,
    /// Prompt tokens from the server's cache; `None` if it does not report them.
    pub cached_tokens: Option<usize>,
    /// Output tokens.
    pub output_tokens: usize,
    /// Whether the token counts are the server's; otherwise they count chunks.
    pub counted_by_server: bool,
    /// Answers per second.
    pub requests_per_second: f64,
    /// Output tokens per second.
    pub output_tokens_per_second: f64,
    /// Prompt and output tokens per second.
    pub total_tokens_per_second: f64,
    /// Output tokens without each answer's first, per second of the time in which at least one answer was streaming.
    pub decode_tokens_per_second: Option<f64>,
    /// Time to first token.
    pub ttft_ms: Option<Spread>,
    /// Inter-token latency: all gaps between consecutive chunks of all answers.
    pub itl_ms: Option<Spread>,
    /// Mean time per token after the first, of each answer.
    pub tpot_ms: Option<Spread>,
    /// From sending to the end.
    pub e2e_ms: Option<Spread>,
    /// Delay from the scheduled time to sending; `None` in a closed loop.
    pub schedule_delay_ms: Option<Spread>,
    /// Requests within the objectives, if any are given.
    pub goodput: Option<Goodput>,
    /// The kinds of failures, the most frequent first.
    pub failures: Vec<Failures>,
}

impl Summary {
    /// The figures of a round.
    #[must_use]
    pub fn of(round: &Round, objectives: &[Objective]) -> Self {
        let answered: Vec<&Record> = round.records.iter().filter(|record| record.failure.is_none()).collect();
        let seconds = seconds(&round.records);
        let prompt_tokens = answered.iter().filter_map(|record| Some(record.usage?.prompt_tokens)).sum();
        let output_tokens = answered.iter().map(|record| record.output_tokens()).sum();
        let cached: Vec<usize> = answered.iter().filter_map(|record| record.usage?.cached_tokens()).collect();
        let per_second = |count: usize| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Summary {
            succeeded: answered.len(),
            failed: round.records.len() - answered.len(),
            unfinished: round.unfinished,
            seconds,
            peak_concurrency: round.peak,
            prompt_tokens,
            cached_tokens: (!cached.is_empty()).then(|| cached.iter().sum()),
            output_tokens,
            counted_by_server: answered.iter().all(|record| record.usage.is_some()),
            requests_per_second: per_second(answered.len()),
            output_tokens_per_second: per_second(output_tokens),
            total_tokens_per_second: per_second(prompt_tokens + output_tokens),
            decode_tokens_per_second: decode_tokens_per_second(&answered),
            ttft_ms: Spread::of_times(answered.iter().filter_map(|record| record.time_to_first_token())),
            itl_ms: Spread::of_times(answered.iter().flat_map(|record| record.gaps())),
            tpot_ms: Spread::of_times(answered.iter().filter_map(|record| record.time_per_output_token())),
            e2e_ms: Spread::of_times(answered.iter().map(|record| record.duration())),
            schedule_delay_ms: Spread::of_times(round.records.iter().filter_map(Record::schedule_delay)),
            goodput: goodput(&round.records, objectives, seconds),
            failures: failures(&round.records),
        }
    }
}

fn seconds(records: &[Record]) -> f64 {
    let first = records.iter().map(|record| record.sent).min().unwrap_or_default();
    let last = records.iter().map(|record| record.ended).max().unwrap_or_default();
    last.saturating_sub(first).as_secs_f64()
}

/// Tokens after each answer's first, divided by the length of the union of the intervals from first to last token.
fn decode_tokens_per_second(answered: &[&Record]) -> Option<f64> {
    let streams = answered.iter().filter_map(|record| Some((*record.chunks.first()?, *record.chunks.last()?)));
    let mut streams: Vec<(Duration, Duration)> = streams.collect();
    streams.sort();
    let (mut busy, mut until) = (Duration::ZERO, Duration::ZERO);
    for (first, last) in streams {
        busy += last.saturating_sub(first.max(until));
        until = until.max(last);
    }
    let streamed = answered.iter().filter(|record| !record.chunks.is_empty());
    let tokens: usize = streamed.map(|record| record.output_tokens().saturating_sub(1)).sum();
    (!busy.is_zero()).then(|| tokens as f64 / busy.as_secs_f64())
}

fn goodput(records: &[Record], objectives: &[Objective], seconds: f64) -> Option<Goodput> {
    if objectives.is_empty() || records.is_empty() {
        return None;
    }
    // A latency that an answer is too short to have counts as met.
    let meets = |record: &Record, objective: &Objective| {
        objective.latency.of(record).is_none_or(|latency| latency <= objective.limit_ms)
    };
    let is_good =
        |record: &&Record| record.failure.is_none() && objectives.iter().all(|objective| meets(record, objective));
    let good = records.iter().filter(is_good).count() as f64;
    let requests_per_second = if seconds > 0.0 { good / seconds } else { 0.0 };
    Some(Goodput { objectives: objectives.to_vec(), share: good / records.len() as f64, requests_per_second })
}

fn failures(records: &[Record]) -> Vec<Failures> {
    let mut by_kind: BTreeMap<String, Failures> = BTreeMap::new();
    for failure in records.iter().filter_map(|record| record.failure.as_ref()) {
        let kind = failure.kind();
        let new = || Failures { kind: kind.clone(), count: 0, example: failure.to_string() };
        by_kind.entry(kind.clone()).or_insert_with(new).count += 1;
    }
    let mut failures: Vec<Failures> = by_kind.into_values().collect();
    failures.sort_by_key(|failures| std::cmp::Reverse(failures.count));
    failures
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::super::record::Failure;
    use super::*;

    fn round(records: Vec<Record>) -> Round {
        Round { records, peak: 2, ..Round::default() }
    }

    #[test]
    fn percentiles_are_interpolated() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!((spread.mean, spread.p50, spread.max), (3.0, 3.0, 5.0));
        assert!((spread.p95 - 4.8).abs() < 1e-9 && (spread.p99 - 4.96).abs() < 1e-9, "{spread:?}");
        assert_eq!(Spread::of(vec![7.0]).unwrap().p99, 7.0);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn failures_count_neither_for_rates_nor_for_latencies() {
        let failed = Record { failure: Some(Failure::Empty), ..Record::streamed(&[9000, 10_100]) };
        let summary =
            Summary::of(&round(vec![Record::streamed(&[200, 300, 400]), Record::streamed(&[300, 600]), failed]), &[]);
        assert_eq!((summary.succeeded, summary.failed, summary.output_tokens), (2, 1, 5));
        assert_eq!(summary.seconds, 10.0);
        assert_eq!(summary.output_tokens_per_second, 0.5);
        assert_eq!(summary.ttft_ms.unwrap().max, 200.0);
        assert_eq!(summary.itl_ms.unwrap().count, 3);
        assert_eq!(summary.decode_tokens_per_second, Some(3.0 / 0.4), "an answer was streaming from 200 ms to 600 ms");
        assert_eq!(summary.schedule_delay_ms, None);
        assert!(!summary.counted_by_server);
    }

    #[test]
    fn a_round_without_an_answer_has_no_latencies() {
        let failed = || Record { failure: Some(Failure::Empty), ..Record::streamed(&[]) };
        let refused = Failure::Refused { status: 429, retry_after: None, message: "busy".to_owned() };
        let refused = Record { failure: Some(refused), ..Record::streamed(&[]) };
        let summary = Summary::of(&round(vec![refused, failed(), failed()]), &["ttft:5".parse().unwrap()]);
        assert_eq!((summary.ttft_ms, summary.requests_per_second), (None, 0.0));
        assert_eq!(summary.goodput.unwrap().share, 0.0);
        let kinds: Vec<(&str, usize)> = summary.failures.iter().map(|kind| (kind.kind.as_str(), kind.count)).collect();
        assert_eq!(kinds, [("empty answer", 2), ("HTTP 429 without Retry-After", 1)]);
        assert_eq!(summary.failures[1].example, "HTTP 429: busy");
        assert_eq!(Summary::of(&Round::default(), &[]).succeeded, 0);
    }

    #[test]
    fn goodput_counts_requests_within_all_objectives() {
        let good = Record::streamed(&[150, 160, 170]);
        let slow_start = Record::streamed(&[700, 710, 720]);
        let stutters = Record::streamed(&[150, 290, 400]);
        let objectives: Vec<Objective> = ["ttft:500", "itl:50"].map(|text| text.parse().unwrap()).to_vec();
        let summary = Summary::of(&round(vec![good, slow_start, stutters, Record::streamed(&[150])]), &objectives);
        assert_eq!(summary.goodput.unwrap().share, 0.5, "an answer of one token has no gaps");
    }

    #[test]
    fn an_objective_is_a_latency_and_its_limit() {
        assert_eq!("e2e:5000".parse(), Ok(Objective { latency: Latency::E2e, limit_ms: 5000.0 }));
        for wrong in ["", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:x", "tbt:5", "ttft:inf", "ttft:NaN"] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
    }
}
