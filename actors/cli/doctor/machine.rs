//! The checks of the machine: a pure function of the report.

use cuelight_engine::backend::vulkan::NVIDIA_CONTAINER_HINT;
use cuelight_engine::memory::format_bytes;
use serde_json::Value;

use super::check::Check;
use super::report::{Choices, Cpu, Report, Speed};

/// Rates that differ by less than this factor are the same.
const SAME: f64 = 1.1;
/// Less memory than this suits only small models.
const LITTLE_BYTES: u64 = 1 << 30;
/// Less memory than this suits no model.
const TOO_LITTLE_BYTES: u64 = 128 << 20;

/// The checks of CPU, memory, speed, calibration and GPUs.
pub fn checks(report: &Report) -> Vec<Check> {
    let check = Check::ok;
    vec![
        check("cpu", cpu(&report.cpu)),
        check("features", report.cpu.features.join(" ")),
        check("kernel", kernels(&report.cpu)).unusable(no_such_kernel(report)).warn(slow_kernel(report)),
        check("threads", threads(&report.tuning)).warn(threads_beyond_cpus(report).or_else(|| shared_cores(report))),
        check("memory", memory(report)).unusable(too_little_memory(report)).warn(little_memory(report)),
        check("limits", limits(report)).warn(fraction_of_a_cpu(report)),
        check("bandwidth", bandwidth(&report.speed)),
        check("calibration", calibration(&report.tuning)).warn(not_calibrated(report)),
        check("gpus", gpus(report))
            .unusable(no_such_device(report))
            .warn(lacking_gpu(report).or_else(|| hidden_gpu(report))),
    ]
}

fn cpu(cpu: &Cpu) -> String {
    let cores = cpu.cores.map_or_else(String::new, |cores| format!("{cores} cores, "));
    let usable = if cpu.usable_cpus == cpu.cpus { String::new() } else { format!(", {} usable", cpu.usable_cpus) };
    let kind = if cpu.is_virtual { ", virtual" } else { "" };
    let size = |bytes: Option<usize>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| format_bytes(bytes as u64));
    let (l2, l3) = (size(cpu.l2_bytes), size(cpu.l3_bytes));
    format!("{}: {cores}{} CPUs{usable}{kind}, L2 {l2}, L3 {l3}", cpu.name, cpu.cpus)
}

fn kernels(cpu: &Cpu) -> String {
    let name = |kernel: &&str| if *kernel == cpu.kernel { format!("{kernel} (used)") } else { (*kernel).to_owned() };
    cpu.kernels.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn no_such_kernel(report: &Report) -> Option<String> {
    let kernel = report.cpu.unsupported_kernel?;
    Some(format!("this CPU has no {kernel}, so remove the setting `kernel`"))
}

fn slow_kernel(report: &Report) -> Option<String> {
    let best = *report.cpu.kernels.last()?;
    if best == "scalar" {
        let advice =
            "products run in portable code here, which is slow, so use a CPU with AVX2 or a GPU for larger models";
        return Some(advice.to_owned());
    }
    (report.cpu.kernel != best).then(|| format!("remove the setting `kernel`, because {best} is the fastest one here"))
}

fn threads(choices: &Choices) -> String {
    let measured = choices.calibration.as_ref().map(|calibration| &calibration.measured);
    let reason = match (choices.threads_are_set, measured.and_then(|measured| measured.threads)) {
        (true, _) => "set by the configuration".to_owned(),
        (false, Some((reads, products))) => {
            format!(
                "all CPUs are {reads:.2} times as fast as half of them for one row, {products:.2} times for many rows"
            )
        }
        (false, None) => "all that this process may use".to_owned(),
    };
    format!("{} ({reason})", choices.threads)
}

fn threads_beyond_cpus(report: &Report) -> Option<String> {
    let (threads, cpus) = (report.tuning.threads, report.cpu.usable_cpus);
    (threads > cpus).then(|| {
        format!("lower the setting `threads` from {threads}, because this process may use only {cpus} CPUs and threads then wait for each other")
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
            "give the machine whole cores or end other programs, because {} threads compute only {factor:.1} times as fast \
             as one",
            all.threads
        )
    })
}

fn memory(report: &Report) -> String {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
    let pages = report.memory.huge_pages.as_deref().unwrap_or("unknown");
    let memory = &report.memory;
    format!("{}, {} free, huge pages: {pages}", size(memory.total_bytes), size(memory.available_bytes))
}

fn too_little_memory(report: &Report) -> Option<String> {
    let is_too_little = report.memory.available_bytes.is_some_and(|bytes| bytes < TOO_LITTLE_BYTES);
    is_too_little.then(|| "end other programs or raise the limit of the container; no model fits".to_owned())
}

fn little_memory(report: &Report) -> Option<String> {
    let is_little = report.memory.available_bytes.is_some_and(|bytes| bytes < LITTLE_BYTES);
    is_little
        .then(|| "end other programs, raise the limit of the container, or use small models such as demo".to_owned())
}

fn limits(report: &Report) -> String {
    let cpus = report.limits.cpus.map(|cpus| format!("{cpus:.2} CPUs"));
    let memory = report.limits.memory_bytes.map(|bytes| format!("{} of memory", format_bytes(bytes)));
    let limits: Vec<String> = cpus.into_iter().chain(memory).collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}

fn fraction_of_a_cpu(report: &Report) -> Option<String> {
    let cpus = report.limits.cpus.filter(|cpus| cpus.fract() > 0.0)?;
    Some(format!("set the container's limit of {cpus:.2} CPUs to a whole number, because Cuelight uses whole ones"))
}

fn bandwidth(speeds: &[Speed]) -> String {
    let one = |speed: &Speed| {
        let threads = if speed.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", speed.threads) };
        format!("{:.1} GB/s read by {threads}", speed.read_bytes_per_second / 1e9)
    };
    speeds.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn calibration(choices: &Choices) -> String {
    let detail = choices.detail.as_deref().unwrap_or_default();
    match choices.source {
        "default" => {
            "defaults; the first `cuelight run` or `serve`, or `cuelight doctor --calibrate`, measures".to_owned()
        }
        "stored" => format!("measured earlier, in {detail}; `cuelight doctor --calibrate` measures again"),
        "measured" => format!("measured now, kept in {detail}"),
        _ => format!("measured now, not kept: {detail}"),
    }
}

fn not_calibrated(report: &Report) -> Option<String> {
    let tuning = &report.tuning;
    match tuning.source {
        "default" if tuning.is_off => {
            Some("run `cuelight doctor --calibrate` once, because the setting `calibrate` is off".to_owned())
        }
        "not kept" => Some(
            "run `cuelight doctor --calibrate` again once the reason is gone; until then each start measures"
                .to_owned(),
        ),
        _ => None,
    }
}

fn gpus(report: &Report) -> String {
    let name = |gpu: &Value| {
        let bytes = format_bytes(gpu["memory_bytes"].as_u64().unwrap_or(0));
        // A Vulkan driver may compute on the CPU.
        let kind = if gpu["kind"] == "cpu" { "no GPU: software on the CPU, " } else { "" };
        let lacking = words(&gpu["lacking"]);
        let lacking = if lacking.is_empty() { String::new() } else { format!(", lacks {lacking}") };
        format!("{} {} ({kind}{bytes}{lacking})", text(&gpu["device"]), text(&gpu["name"]))
    };
    match (&report.gpus[..], &report.no_gpus) {
        ([], reason) => format!("none; {}", reason.as_deref().unwrap_or("the driver lists no device")),
        (gpus, _) => gpus.iter().map(name).collect::<Vec<_>>().join("; "),
    }
}

fn no_such_device(report: &Report) -> Option<String> {
    let device = report.missing_device.as_deref()?;
    Some(format!("{device} cannot be used here, so remove the setting `device`, which selects it"))
}

fn lacking_gpu(report: &Report) -> Option<String> {
    let gpu = report.gpus.iter().find(|gpu| gpu["usable"] != true)?;
    Some(format!("update the driver of {}, which lacks {}", text(&gpu["device"]), words(&gpu["missing"])))
}

/// A GPU of NVIDIA that computes but that Vulkan does not list, as in many containers.
fn hidden_gpu(report: &Report) -> Option<String> {
    let is_nvidia = |gpu: &Value| ["name", "driver"].iter().any(|key| text(&gpu[key]).contains("NVIDIA"));
    let is_hidden = report.has_nvidia_driver && !report.gpus.iter().any(is_nvidia);
    is_hidden.then(|| format!("let Vulkan find the NVIDIA GPU of this machine: {NVIDIA_CONTAINER_HINT}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// A list of features, without the explanations that `cuelight devices` gives.
fn words(list: &Value) -> String {
    let name = |value| text(value).split(": ").next().unwrap_or_default();
    list.as_array().into_iter().flatten().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::super::report::{Limits, Memory};
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
                unsupported_kernel: None,
            },
            memory: Memory { total_bytes: None, available_bytes: Some(8 << 30), huge_pages: None },
            limits: Limits { cpus: None, memory_bytes: None },
            speed: vec![speed(1, 4e11), speed(2, 8e11)],
            gpus: Vec::new(),
            no_gpus: None,
            has_nvidia_driver: false,
            missing_device: None,
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
            checks: Vec::new(),
        }
    }

    fn findings(report: &Report) -> Vec<Check> {
        checks(report).into_iter().filter(|check| check.state != State::Ok).collect()
    }

    #[track_caller]
    fn assert_finding(change: impl Fn(&mut Report), check: &str, state: State, words: &str) {
        let mut report = report();
        change(&mut report);
        let found = findings(&report);
        assert!(found.len() == 1 && found[0].check == check && found[0].state == state, "{found:?}");
        assert!(found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains(words)), "{words} in {found:?}");
    }

    #[test]
    fn a_machine_without_findings_has_no_remedies() {
        assert_eq!(findings(&report()), []);
        assert!(checks(&report()).iter().all(|check| check.remedy.is_none()));
    }

    #[test]
    fn each_finding_is_one_sentence() {
        let warns = |change: fn(&mut Report), check, words| assert_finding(change, check, State::Warning, words);
        warns(|report| report.cpu.kernels = vec!["scalar"], "kernel", "AVX2");
        warns(|report| report.cpu.kernel = "scalar", "kernel", "avx2 is the fastest");
        warns(|report| report.tuning.threads = 3, "threads", "only 2 CPUs");
        warns(|report| report.speed[1] = speed(2, 4.1e11), "threads", "only 1.0 times");
        warns(|report| report.limits.cpus = Some(1.5), "limits", "1.50 CPUs");
        warns(|report| report.memory.available_bytes = Some(500 << 20), "memory", "end other programs");
        warns(|report| report.tuning.is_off = true, "calibration", "doctor --calibrate");
        warns(|report| report.tuning.source = "not kept", "calibration", "again");
        let gpu = |report: &mut Report| {
            let missing = ["16-bit storage"];
            report.gpus = vec![serde_json::json!({ "device": "vulkan:0", "usable": false, "missing": missing })];
        };
        warns(gpu, "gpus", "vulkan:0, which lacks 16-bit storage");
        warns(|report| report.has_nvidia_driver = true, "gpus", "libvulkan1, libegl1, libgl1, libx11-6 and libxext6");
        let software = |report: &mut Report| {
            report.has_nvidia_driver = true;
            report.gpus = vec![serde_json::json!({ "device": "vulkan:0", "name": "llvmpipe", "usable": true })];
        };
        warns(software, "gpus", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute");
    }

    #[test]
    fn an_nvidia_gpu_that_vulkan_lists_is_no_finding() {
        let mut report = report();
        report.has_nvidia_driver = true;
        report.gpus = vec![serde_json::json!({ "device": "vulkan:0", "name": "NVIDIA H100", "usable": true })];
        assert_eq!(findings(&report), []);
    }

    #[test]
    fn settings_that_fail_at_each_start_make_it_unusable() {
        let fails = |change: fn(&mut Report), check, words| assert_finding(change, check, State::Unusable, words);
        fails(|report| report.cpu.unsupported_kernel = Some("amx-int8"), "kernel", "no amx-int8");
        fails(|report| report.missing_device = Some("vulkan:7".to_owned()), "gpus", "vulkan:7 cannot be used");
        fails(|report| report.memory.available_bytes = Some(5 << 20), "memory", "no model fits");
    }

    #[test]
    fn threads_of_one_real_core_are_no_finding() {
        let mut report = report();
        report.speed[1] = speed(2, 4.1e11);
        report.cpu.cores = Some(1);
        assert_eq!(findings(&report), [], "the system says so itself");
    }
}
