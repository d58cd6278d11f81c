//! The results: a table of medians and ratios, or JSON with every sample.

use std::path::PathBuf;

use cuelight_engine::load::ActivationBits;
use serde_json::{Value, json};

use super::contender::{Contender, FlashAttention};
use super::rows::{Figure, Series, Test, best};
use crate::cli::terminal::{Align, TableFormat, markdown, number};

/// A setting of a peer is clearly slower below this fraction of the peer's best setting.
const CLEARLY_SLOWER: f64 = 0.8;

/// What is the same for all runs.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The model's file.
    pub model: PathBuf,
    /// Number of compute threads.
    pub threads: usize,
    /// Bits of activations in this program's integer kernels.
    pub activation_bits: ActivationBits,
    /// Number of rounds.
    pub rounds: usize,
}

/// The results of a comparison, so far.
#[derive(Debug)]
pub struct Comparison {
    started: String,
    conditions: Conditions,
    tests: Vec<Test>,
    contenders: Vec<Contender>,
    series: Vec<Series>,
    failures: Vec<Failed>,
}

/// A failed job of a contender.
#[derive(Debug)]
struct Failed {
    name: String,
    job: String,
    reason: String,
}

impl Comparison {
    /// A comparison without results. The other contenders are compared with the first one.
    #[must_use]
    pub fn new(conditions: Conditions, tests: Vec<Test>, contenders: Vec<Contender>) -> Self {
        let started = jiff::Timestamp::now().to_string();
        let (series, failures) = (Vec::new(), Vec::new());
        Comparison { started, conditions, tests, contenders, series, failures }
    }

    /// The number of rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.conditions.rounds
    }

    /// A contender by its index.
    #[must_use]
    pub fn contender(&self, index: usize) -> &Contender {
        &self.contenders[index]
    }

    /// Whether a contender is clearly slower with a setting than with another one, in every one of these rows.
    #[must_use]
    pub fn is_clearly_slower(&self, tests: &[Test], contender: usize, setting: Option<FlashAttention>) -> bool {
        let is_slower = |&test: &Test| {
            let own = |series: &&Series| (series.test, series.contender, series.setting) == (test, contender, setting);
            let own = self.series.iter().find(own).and_then(Series::figure);
            let (Some(own), Some((_, best))) = (own, self.best(test, contender)) else { return false };
            match test.less_is_better() {
                true => best.median < CLEARLY_SLOWER * own.median,
                false => own.median < CLEARLY_SLOWER * best.median,
            }
        };
        tests.iter().all(is_slower)
    }

    /// Adds a sample.
    pub fn record(&mut self, test: Test, contender: usize, setting: Option<FlashAttention>, sample: f64) {
        let known =
            |series: &&mut Series| (series.test, series.contender, series.setting) == (test, contender, setting);
        match self.series.iter_mut().find(known) {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series { test, contender, setting, samples: vec![sample] }),
        }
    }

    /// Records that a contender failed in a job.
    pub fn fail(&mut self, contender: usize, setting: Option<FlashAttention>, job: &str, reason: String) {
        let name = self.contenders[contender].with_setting(setting);
        self.failures.push(Failed { name, job: job.to_owned(), reason });
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The failures: their number, and a line for each; `None` without failures.
    #[must_use]
    pub fn failures(&self) -> Option<String> {
        let count = match self.failures.len() {
            0 => return None,
            1 => "1 measurement failed".to_owned(),
            count => format!("{count} measurements failed"),
        };
        let lines =
            self.failures.iter().map(|failed| format!("\n  {}, {}: {}", failed.name, failed.job, failed.reason));
        Some(count + &lines.collect::<String>())
    }

    /// The results in this format.
    #[must_use]
    pub fn print(&self, format: TableFormat) -> String {
        match format {
            TableFormat::Md => self.markdown(),
            TableFormat::Json => format!("{:#}\n", self.json()),
        }
    }

    fn best(&self, test: Test, contender: usize) -> Option<(&Series, Figure)> {
        best(&self.series, test, contender)
    }

    /// The first contender's median over another's.
    fn ratio(&self, test: Test, contender: usize) -> Option<f64> {
        let (ours, theirs) = (self.best(test, 0)?.1.median, self.best(test, contender)?.1.median);
        (theirs > 0.0).then(|| ours / theirs)
    }

    fn markdown(&self) -> String {
        let mut columns = vec![("test", Align::Left)];
        for (index, contender) in self.contenders.iter().enumerate() {
            columns.push((contender.name.as_str(), Align::Right));
            if index > 0 {
                columns.push(("ratio", Align::Right));
            }
        }
        let rows: Vec<Vec<String>> = self.tests.iter().filter_map(|&test| self.row(test)).collect();
        let model = &self.conditions.model;
        let file = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
        // After Ctrl-C there are fewer rounds than requested.
        let rounds = match self.series.iter().map(|series| series.samples.len()).max().unwrap_or(0) {
            1 => "1 round".to_owned(),
            rounds => format!("medians of {rounds} rounds"),
        };
        let threads = match self.conditions.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        let bits = self.conditions.activation_bits;
        let precision = format!("activations of quantized weights: cuelight {bits} bits, peers 8 bits");
        let legend = if rows.iter().any(|row| row[0].ends_with('↓')) { "\n↓ smaller is better\n" } else { "" };
        format!("{file}, {threads}, {rounds}; {precision}\n\n{}{legend}", markdown(&columns, &rows))
    }

    /// A row of the table; `None` if no contender has a figure.
    fn row(&self, test: Test) -> Option<Vec<String>> {
        let figures: Vec<_> = (0..self.contenders.len()).map(|index| self.best(test, index)).collect();
        if figures.iter().all(Option::is_none) {
            return None;
        }
        let arrow = if test.less_is_better() { " ↓" } else { "" };
        let mut row = vec![format!("{}, {}{arrow}", test.name(), test.unit())];
        for (index, figure) in figures.into_iter().enumerate() {
            row.push(figure.map_or_else(|| "-".to_owned(), |(series, figure)| cell(series, figure)));
            if index > 0 {
                row.push(self.ratio(test, index).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
            }
        }
        Some(row)
    }

    fn json(&self) -> Value {
        let contender = |contender: &Contender| json!({ "name": contender.name, "is_this_program": contender.is_ours(), "folder": contender.folder() });
        let failed = |failed: &Failed| json!({ "name": failed.name, "job": failed.job, "reason": failed.reason });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": self.started,
            "model_filename": self.conditions.model,
            "threads": self.conditions.threads,
            "activation_bits": self.conditions.activation_bits.to_string(),
            "rounds": self.conditions.rounds,
            "contenders": self.contenders.iter().map(contender).collect::<Vec<_>>(),
            "rows": self.tests.iter().map(|&test| self.json_row(test)).collect::<Vec<_>>(),
            "failures": self.failures.iter().map(failed).collect::<Vec<_>>(),
        })
    }

    fn json_row(&self, test: Test) -> Value {
        let of_row = self.series.iter().filter(|series| series.test == test);
        let series = |series: &Series| {
            let figure = series.figure();
            let is_best = self.best(test, series.contender).is_some_and(|(best, _)| best.setting == series.setting);
            json!({
                "name": self.contenders[series.contender].name,
                "setting": series.setting.map(FlashAttention::name),
                "is_best": is_best,
                "median": figure.map(|figure| figure.median),
                "min": figure.map(|figure| figure.min),
                "max": figure.map(|figure| figure.max),
                "samples": series.samples,
            })
        };
        let ratio = |index: usize| json!({ "to": self.contenders[index].name, "ratio": self.ratio(test, index) });
        json!({
            "test": test.name(),
            "unit": test.unit(),
            "less_is_better": test.less_is_better(),
            "results": of_row.map(series).collect::<Vec<_>>(),
            "ratios": (1..self.contenders.len()).map(ratio).collect::<Vec<_>>(),
        })
    }
}

/// "433 (421–440), fa on": the median, minimum and maximum of several samples, and the setting.
fn cell(series: &Series, figure: Figure) -> String {
    let range = match series.samples.len() {
        1 => String::new(),
        _ => format!(" ({}–{})", number(figure.min), number(figure.max)),
    };
    let setting = series.setting.map(|setting| format!(", {}", setting.name())).unwrap_or_default();
    format!("{}{range}{setting}", number(figure.median))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: Test = Test::Decode { tokens: 128, depth: 0 };
    const ON: Option<FlashAttention> = Some(FlashAttention::On);
    const OFF: Option<FlashAttention> = Some(FlashAttention::Off);

    fn comparison() -> Comparison {
        let tests = vec![Test::Prefill { tokens: 512 }, DECODE, Test::PeakMemory, Test::ColdStart];
        let contenders = vec![Contender::absent_ours(), Contender::absent_peer("4000 (abc)", "", "")];
        let (model, activation_bits) = ("/models/m.gguf".into(), ActivationBits::Fifteen);
        let conditions = Conditions { model, threads: 2, activation_bits, rounds: 3 };
        let mut comparison = Comparison::new(conditions, tests, contenders);
        for (contender, setting, samples) in [(0, None, [400.0, 420.0, 390.0]), (1, OFF, [200.0, 190.0, 210.0])] {
            samples.into_iter().for_each(|sample| comparison.record(DECODE, contender, setting, sample));
        }
        comparison.record(DECODE, 1, ON, 100.0);
        comparison.record(Test::ColdStart, 0, None, 300.0);
        comparison.record(Test::ColdStart, 1, OFF, 600.0);
        comparison.record(Test::Prefill { tokens: 512 }, 0, None, 1700.0);
        comparison
    }

    #[test]
    fn the_table_has_medians_ranges_the_better_setting_and_ratios() {
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "m.gguf, 2 threads, medians of 3 rounds; activations of quantized weights: cuelight 15 bits, peers 8 bits\n\n\
             | test | cuelight {version} | 4000 (abc) | ratio |\n\
             | --- | ---: | ---: | ---: |\n\
             | prefill 512, tok/s | 1700 | - | - |\n\
             | decode 128, tok/s | 400 (390–420) | 200 (190–210), fa off | 2.00 |\n\
             | cold start, ms ↓ | 300 | 600, fa off | 0.50 |\n\
             \n↓ smaller is better\n"
        );
        assert_eq!(comparison().print(TableFormat::Md), expected);
    }

    #[test]
    fn json_has_all_samples_of_all_settings() {
        let json: Value = serde_json::from_str(&comparison().print(TableFormat::Json)).unwrap();
        let row = &json["rows"][1];
        assert_eq!((&row["test"], &row["unit"]), (&json!("decode 128"), &json!("tok/s")));
        assert_eq!(row["results"][0]["samples"], json!([400.0, 420.0, 390.0]));
        assert_eq!((&row["results"][1]["setting"], &row["results"][1]["is_best"]), (&json!("fa off"), &json!(true)));
        assert_eq!((&row["results"][2]["setting"], &row["results"][2]["is_best"]), (&json!("fa on"), &json!(false)));
        assert_eq!(row["ratios"], json!([{ "to": "4000 (abc)", "ratio": 2.0 }]));
        assert_eq!(json["rows"][0]["ratios"][0]["ratio"], Value::Null);
        assert_eq!(json["contenders"][0]["is_this_program"], true);
    }

    #[test]
    fn a_setting_is_clearly_slower_only_if_it_is_in_every_row() {
        let comparison = comparison();
        assert!(comparison.is_clearly_slower(&[DECODE], 1, ON));
        assert!(!comparison.is_clearly_slower(&[DECODE], 1, OFF));
        assert!(!comparison.is_clearly_slower(&[DECODE, Test::ColdStart], 1, ON), "a row without a figure");
        assert!(!comparison.is_clearly_slower(&[DECODE], 0, None));
    }

    #[test]
    fn failures_name_contender_and_job() {
        let mut comparison = comparison();
        assert_eq!(comparison.failures(), None);
        comparison.fail(1, ON, "serving", "it ended".to_owned());
        assert_eq!(comparison.failures().unwrap(), "1 measurement failed\n  4000 (abc) (fa on), serving: it ended");
        assert_eq!(comparison.json()["failures"][0]["job"], "serving");
    }
}
