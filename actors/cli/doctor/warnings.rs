//! What a user can change so that models run faster. A pure function of the report.

use super::report::{Report, Speed};

/// Rates that differ by less than this factor are the same.
const SAME: f64 = 1.1;

/// One sentence for each finding.
pub fn warnings(report: &Report) -> Vec<String> {
    let found = [
        slow_kernel(report),
        threads_beyond_cpus(report),
        shared_cores(report),
        fraction_of_a_cpu(report),
        little_memory(report),
        not_calibrated(report),
    ];
    found.into_iter().flatten().collect()
}

fn slow_kernel(report: &Report) -> Option<String> {
    let best = *report.cpu.kernels.last()?;
    if best == "scalar" {
        let advice =
            "this CPU has no AVX2 that Cuelight can use, so products run in portable code; models are slow here";
        return Some(advice.to_owned());
    }
    let kernel = report.cpu.kernel;
    (kernel != best).then(|| format!("the setting `kernel` selects {kernel}, but {best} is the fastest one here"))
}

fn threads_beyond_cpus(report: &Report) -> Option<String> {
    let (threads, cpus) = (report.tuning.threads, report.cpu.usable_cpus);
    (threads > cpus).then(|| {
        format!("the setting `threads` is {threads}, but this process may use only {cpus} CPUs; threads then wait for each other")
    })
}

/// Several threads are no faster than half of their number of cores would be.
fn shared_cores(report: &Report) -> Option<String> {
    let [one, .., all] = &report.speed[..] else { return None };
    let rate = |speed: &Speed| speed.dot_products_per_second.unwrap_or(speed.float_operations_per_second);
    let factor = rate(all) / rate(one);
    let halves = all.threads as f64 / 2.0;
    let shares = report.cpu.is_virtual && report.cpu.cores == Some(report.cpu.cpus) && factor < halves * SAME;
    shares.then(|| {
        format!(
            "{} threads compute only {factor:.1} times as fast as one: the virtual CPUs share cores, or other programs use \
             them; more whole cores would help",
            all.threads
        )
    })
}

fn fraction_of_a_cpu(report: &Report) -> Option<String> {
    let cpus = report.limits.cpus.filter(|cpus| cpus.fract() > 0.0)?;
    Some(format!(
        "the limit of the container is {cpus:.2} CPUs, of which Cuelight uses whole ones; a limit without a fraction wastes \
         nothing"
    ))
}

fn little_memory(report: &Report) -> Option<String> {
    const LITTLE: u64 = 1 << 30;
    let available = report.memory.available_bytes.filter(|bytes| *bytes < LITTLE)?;
    Some(format!("only {} MiB of memory are free; most models need more", available >> 20))
}

fn not_calibrated(report: &Report) -> Option<String> {
    let tuning = &report.tuning;
    match (tuning.source, &tuning.detail) {
        ("default", _) if tuning.is_off => Some(
            "the setting `calibrate` is off; `cuelight doctor --calibrate` measures once, and the result is used"
                .to_owned(),
        ),
        ("not kept", Some(reason)) => Some(format!("the calibration is not kept and runs at each start: {reason}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Choices, Cpu, Limits, Memory};
    use super::*;

    fn speed(threads: usize, dots: f64) -> Speed {
        Speed {
            threads,
            read_bytes_per_second: 2e10,
            cached_read_bytes_per_second: 4e10,
            dot_products_per_second: Some(dots),
            float_operations_per_second: 1e11,
        }
    }

    /// A machine without findings.
    fn report() -> Report {
        Report {
            version: "1.0.0",
            cpu: Cpu {
                name: "CPU".to_owned(),
                features: Vec::new(),
                cpus: 2,
                cores: Some(2),
                usable_cpus: 2,
                is_virtual: true,
                l2_bytes: None,
                l3_bytes: None,
                kernels: vec!["scalar", "avx2"],
                kernel: "avx2",
            },
            memory: Memory { total_bytes: None, available_bytes: Some(8 << 30), huge_pages: None },
            limits: Limits { cpus: None, memory_bytes: None },
            speed: vec![speed(1, 4e11), speed(2, 8e11)],
            gpus: Vec::new(),
            no_gpus: None,
            tuning: Choices {
                threads: 2,
                threads_are_set: false,
                prefetch_ahead: 0,
                rows_in_cache: 0,
                amx_least_rows: None,
                source: "default",
                detail: None,
                is_off: false,
                calibration: None,
            },
            warnings: Vec::new(),
        }
    }

    fn only_warning(change: impl Fn(&mut Report)) -> String {
        let mut report = report();
        change(&mut report);
        let mut found = warnings(&report);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_machine_without_findings_has_no_warnings() {
        assert_eq!(warnings(&report()), Vec::<String>::new());
    }

    #[test]
    fn each_finding_is_one_sentence() {
        assert!(only_warning(|report| report.cpu.kernels = vec!["scalar"]).contains("AVX2"));
        assert!(only_warning(|report| report.cpu.kernel = "scalar").contains("avx2 is the fastest"));
        assert!(only_warning(|report| report.tuning.threads = 3).contains("only 2 CPUs"));
        assert!(only_warning(|report| report.speed[1] = speed(2, 4.1e11)).contains("only 1.0 times"));
        assert!(only_warning(|report| report.limits.cpus = Some(1.5)).contains("1.50 CPUs"));
        assert!(only_warning(|report| report.memory.available_bytes = Some(5 << 20)).contains("5 MiB"));
        assert!(only_warning(|report| report.tuning.is_off = true).contains("doctor --calibrate"));
        let not_kept = |report: &mut Report| {
            report.tuning.source = "not kept";
            report.tuning.detail = Some("reasons".to_owned());
        };
        assert!(only_warning(not_kept).ends_with("at each start: reasons"));
    }

    #[test]
    fn threads_of_one_real_core_are_no_finding() {
        let mut report = report();
        report.speed[1] = speed(2, 4.1e11);
        report.cpu.cores = Some(1);
        assert_eq!(warnings(&report), Vec::<String>::new(), "the system says so itself");
    }
}
