//! The rows of the comparison, and their samples.

use super::contender::FlashAttention;
use crate::cli::bench::serve::summary::median;

/// Prompt lengths of the prefill rows.
const PREFILL_TOKENS: [usize; 2] = [512, 2048];

/// Tokens generated in the decode rows.
const DECODE_TOKENS: usize = 128;

/// Tokens in the cache before the decode row at depth.
const DEPTH_TOKENS: usize = 2048;

/// A group of rows, as named by --only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Prompts of 512 and 2048 tokens, in tokens per second.
    Prefill,
    /// 128 generated tokens, in tokens per second.
    Decode,
    /// The same after 2048 tokens in the cache.
    Depth,
    /// Output tokens per second of all clients, and the median time to first token, for each number of clients.
    Serve,
    /// The server's peak resident memory after all requests.
    Memory,
    /// The time from the start of the server to its first token.
    Start,
}

impl Kind {
    /// All groups, in the order of the table.
    pub const ALL: [Kind; 6] = [Kind::Prefill, Kind::Decode, Kind::Depth, Kind::Serve, Kind::Memory, Kind::Start];

    /// The rows of the group.
    #[must_use]
    pub fn tests(self, clients: &[usize]) -> Vec<Test> {
        let each = |test: fn(usize) -> Test| clients.iter().copied().map(test);
        match self {
            Kind::Prefill => PREFILL_TOKENS.map(|tokens| Test::Prefill { tokens }).to_vec(),
            Kind::Decode => vec![Test::Decode { tokens: DECODE_TOKENS, depth: 0 }],
            Kind::Depth => vec![Test::Decode { tokens: DECODE_TOKENS, depth: DEPTH_TOKENS }],
            Kind::Serve => {
                let throughput = each(|clients| Test::Throughput { clients });
                throughput.chain(each(|clients| Test::FirstToken { clients })).collect()
            }
            Kind::Memory => vec![Test::PeakMemory],
            Kind::Start => vec![Test::ColdStart],
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Prompt processing on an empty cache.
    Prefill {
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// Text generation.
    Decode {
        /// Generated tokens.
        tokens: usize,
        /// Tokens in the cache before.
        depth: usize,
    },
    /// Output tokens per second of clients in a closed loop.
    Throughput {
        /// Number of clients.
        clients: usize,
    },
    /// The median time to first token.
    FirstToken {
        /// Number of clients.
        clients: usize,
    },
    /// The server's peak resident memory.
    PeakMemory,
    /// The time from the start of the server to its first token.
    ColdStart,
}

impl Test {
    /// The name in the table.
    #[must_use]
    pub fn name(&self) -> String {
        let plural = |clients: usize| if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        match *self {
            Test::Prefill { tokens } => format!("prefill {tokens}"),
            Test::Decode { tokens, depth: 0 } => format!("decode {tokens}"),
            Test::Decode { tokens, depth } => format!("decode {tokens} at depth {depth}"),
            Test::Throughput { clients } => plural(clients),
            Test::FirstToken { clients } => format!("{}, first token", plural(clients)),
            Test::PeakMemory => "peak memory".to_owned(),
            Test::ColdStart => "cold start".to_owned(),
        }
    }

    /// The unit of the figures.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self {
            Test::Prefill { .. } | Test::Decode { .. } => "tok/s",
            Test::Throughput { .. } => "output tok/s",
            Test::FirstToken { .. } | Test::ColdStart => "ms",
            Test::PeakMemory => "MiB",
        }
    }

    /// Whether smaller figures are better.
    #[must_use]
    pub fn less_is_better(&self) -> bool {
        matches!(self, Test::FirstToken { .. } | Test::PeakMemory | Test::ColdStart)
    }
}

/// The samples of one contender in one row, with one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The row.
    pub test: Test,
    /// The index of the contender.
    pub contender: usize,
    /// The setting of a peer.
    pub setting: Option<FlashAttention>,
    /// A sample for each round.
    pub samples: Vec<f64>,
}

/// Median, minimum and maximum of some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Series {
    /// The figure of the samples; `None` without samples.
    #[must_use]
    pub fn figure(&self) -> Option<Figure> {
        let extreme = |pick: fn(f64, f64) -> f64| self.samples.iter().copied().reduce(pick);
        Some(Figure { median: median(self.samples.clone())?, min: extreme(f64::min)?, max: extreme(f64::max)? })
    }
}

/// A contender's best setting in a row, by median.
#[must_use]
pub fn best(series: &[Series], test: Test, contender: usize) -> Option<(&Series, Figure)> {
    let of_row = series.iter().filter(|series| series.test == test && series.contender == contender);
    let figures = of_row.filter_map(|series| Some((series, series.figure()?)));
    let order = |a: f64, b: f64| if test.less_is_better() { b.total_cmp(&a) } else { a.total_cmp(&b) };
    figures.max_by(|(_, a), (_, b)| order(a.median, b.median))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn series(test: Test, contender: usize, setting: Option<FlashAttention>, samples: &[f64]) -> Series {
        Series { test, contender, setting, samples: samples.to_vec() }
    }

    #[test]
    fn a_figure_has_median_minimum_and_maximum() {
        let prefill = Test::Prefill { tokens: 512 };
        let figure = |samples: &[f64]| series(prefill, 0, None, samples).figure();
        assert_eq!(figure(&[3.0, 1.0, 10.0]), Some(Figure { median: 3.0, min: 1.0, max: 10.0 }));
        assert_eq!(figure(&[1.0, 3.0]).unwrap().median, 2.0);
        assert_eq!(figure(&[]), None);
    }

    #[test]
    fn the_better_setting_counts_in_each_row() {
        let (on, off) = (Some(FlashAttention::On), Some(FlashAttention::Off));
        let (speed, start) = (Test::Decode { tokens: 128, depth: 0 }, Test::ColdStart);
        let all = [
            series(speed, 1, off, &[10.0, 10.0, 90.0]),
            series(speed, 1, on, &[20.0, 20.0, 1.0]),
            series(speed, 0, None, &[99.0]),
            series(start, 1, off, &[5.0]),
            series(start, 1, on, &[6.0]),
        ];
        assert_eq!(best(&all, speed, 1).unwrap().0.setting, on);
        assert_eq!(best(&all, start, 1).unwrap().0.setting, off);
        assert_eq!(best(&all, speed, 0).unwrap().1.median, 99.0);
        assert_eq!(best(&all, start, 0), None);
    }
}
