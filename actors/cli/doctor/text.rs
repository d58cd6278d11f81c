//! The report for people: a line for each check, with a remedy below it where there is one, then the details.

use cuelight_engine::memory::format_bytes;

use super::check::{Check, State};
use super::report::{Choices, Report, Speed};
use crate::cli::terminal::{Align, table};

/// The report.
pub fn text(report: &Report) -> String {
    let mut lines = vec![format!("Cuelight {}", report.version)];
    lines.extend(report.checks.iter().flat_map(check));
    lines.extend([String::new(), speed(&report.speed)]);
    lines.extend(tuning(&report.tuning));
    lines.join("\n") + "\n"
}

fn check(check: &Check) -> Vec<String> {
    let mark = match check.state {
        State::Ok => "ok",
        State::Warning => "warning",
        State::Unusable => "problem",
    };
    let line = format!("{:<12} {mark:<8} {}", check.check, check.result);
    let remedy = check.remedy.iter().map(|remedy| format!("{:<21} remedy: {remedy}", ""));
    std::iter::once(line).chain(remedy).collect()
}

fn speed(speeds: &[Speed]) -> String {
    let columns = [
        ("MEASURED", Align::Left),
        ("READ GB/s", Align::Right),
        ("IN 64 MiB", Align::Right),
        ("INT8 GOPS", Align::Right),
        ("F32 GFLOPS", Align::Right),
    ];
    let giga = |value: f64| format!("{:.0}", value / 1e9);
    let row = |speed: &Speed| {
        vec![
            format!("{} thread{}", speed.threads, if speed.threads == 1 { "" } else { "s" }),
            format!("{:.1}", speed.read_bytes_per_second / 1e9),
            format!("{:.1}", speed.cached_read_bytes_per_second / 1e9),
            speed.dot_products_per_second.map_or_else(|| "-".to_owned(), giga),
            giga(speed.float_operations_per_second),
        ]
    };
    table(&columns, &speeds.iter().map(row).collect::<Vec<_>>())
}

/// What the kernels use, and why.
fn tuning(choices: &Choices) -> Vec<String> {
    let measured = choices.calibration.as_ref().map(|calibration| &calibration.measured);
    let ahead = match choices.prefetch_ahead {
        0 => "left to the hardware".to_owned(),
        bytes => format!("{} ahead", format_bytes(bytes as u64)),
    };
    let speeds = measured.map_or_else(String::new, |measured| {
        let of = |(bytes, gain): &(usize, f64)| format!("{} KiB {gain:.2}", bytes >> 10);
        format!("speeds: {}", measured.prefetch.iter().map(of).collect::<Vec<_>>().join(", "))
    });
    let mut lines = vec![
        chosen("prefetches", &ahead, if speeds.is_empty() { "default" } else { &speeds }),
        chosen("activations", &format_bytes(choices.rows_in_cache as u64), "half of the L2 cache"),
    ];
    if let Some(rows) = choices.amx_least_rows {
        lines.push(chosen("tiles", &format!("from {rows} rows"), "AMX against dot products"));
    }
    lines
}

fn chosen(name: &str, value: &str, reason: &str) -> String {
    format!("{name:<13}{value:<22}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_follows_its_check() {
        let fine = Check::ok("port", "8080 is free".to_owned());
        assert_eq!(check(&fine), ["port         ok       8080 is free"]);
        let lines = check(&fine.warn(Some("choose another".to_owned())));
        assert_eq!(lines, ["port         warning  8080 is free", "                      remedy: choose another"]);
    }
}
