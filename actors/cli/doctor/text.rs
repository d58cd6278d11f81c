//! The report for people: a line for each subject.

use cuelight_engine::memory::format_bytes;
use serde_json::Value;

use super::report::{Choices, Cpu, Report, Speed};
use crate::cli::terminal::{Align, table};

/// The report, ending with the warnings.
pub fn text(report: &Report) -> String {
    let mut lines = vec![
        line("Cuelight", report.version),
        line("CPU", &cpu(&report.cpu)),
        line("Caches", &caches(&report.cpu)),
        line("Features", &report.cpu.features.join(" ")),
        line("Kernels", &kernels(&report.cpu)),
        line("Memory", &memory(report)),
        line("Limits", &limits(report)),
        line("GPUs", &gpus(report)),
        String::new(),
        speed(&report.speed),
    ];
    lines.extend(tuning(&report.tuning));
    if !report.warnings.is_empty() {
        lines.push(String::new());
        lines.extend(report.warnings.iter().map(|warning| format!("warning: {warning}")));
    }
    lines.join("\n") + "\n"
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<10}{value}")
}

fn cpu(cpu: &Cpu) -> String {
    let cores = cpu.cores.map_or_else(String::new, |cores| format!("{cores} cores, "));
    let usable = if cpu.usable_cpus == cpu.cpus { String::new() } else { format!(", {} usable", cpu.usable_cpus) };
    let kind = if cpu.is_virtual { ", virtual" } else { "" };
    format!("{}: {cores}{} CPUs{usable}{kind}", cpu.name, cpu.cpus)
}

fn caches(cpu: &Cpu) -> String {
    let size = |bytes: Option<usize>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| format_bytes(bytes as u64));
    format!("L2 {}, L3 {}", size(cpu.l2_bytes), size(cpu.l3_bytes))
}

fn kernels(cpu: &Cpu) -> String {
    let name = |kernel: &&str| if *kernel == cpu.kernel { format!("{kernel} (used)") } else { (*kernel).to_owned() };
    cpu.kernels.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn memory(report: &Report) -> String {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
    let pages = report.memory.huge_pages.as_deref().unwrap_or("unknown");
    let memory = &report.memory;
    format!("{}, {} free, huge pages: {pages}", size(memory.total_bytes), size(memory.available_bytes))
}

fn limits(report: &Report) -> String {
    let cpus = report.limits.cpus.map(|cpus| format!("{cpus:.2} CPUs"));
    let memory = report.limits.memory_bytes.map(|bytes| format!("{} of memory", format_bytes(bytes)));
    let limits: Vec<String> = cpus.into_iter().chain(memory).collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}

fn gpus(report: &Report) -> String {
    let name = |gpu: &Value| {
        let text = |key: &str| gpu[key].as_str().unwrap_or("-").to_owned();
        let usable = if gpu["usable"] == true { "" } else { ", not usable: see `cuelight devices`" };
        let bytes = format_bytes(gpu["memory_bytes"].as_u64().unwrap_or(0));
        // A Vulkan driver may compute on the CPU.
        let kind = if gpu["kind"] == "cpu" { "no GPU: software on the CPU, " } else { "" };
        format!("{} {} ({kind}{bytes}{usable})", text("device"), text("name"))
    };
    match (&report.gpus[..], &report.no_gpus) {
        ([], reason) => format!("none; {}", reason.as_deref().unwrap_or("the driver lists no device")),
        (gpus, _) => gpus.iter().map(name).collect::<Vec<_>>().join("; "),
    }
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

/// What is used, and why.
fn tuning(choices: &Choices) -> Vec<String> {
    let measured = choices.calibration.as_ref().map(|calibration| &calibration.measured);
    let threads_reason = match (choices.threads_are_set, measured.and_then(|measured| measured.threads)) {
        (true, _) => "set by the configuration".to_owned(),
        (false, Some((reads, products))) => {
            format!("all are {reads:.2} of half in products of one row, {products:.2} in those of many")
        }
        (false, None) => "all that this process may use".to_owned(),
    };
    let ahead = match choices.prefetch_ahead {
        0 => "left to the hardware".to_owned(),
        bytes => format!("{} ahead", format_bytes(bytes as u64)),
    };
    let speeds = measured.map_or_else(String::new, |measured| {
        let of = |(bytes, gain): &(usize, f64)| format!("{} KiB {gain:.2}", bytes >> 10);
        format!("speeds: {}", measured.prefetch.iter().map(of).collect::<Vec<_>>().join(", "))
    });
    let mut lines = vec![
        line("Tuning", &source(choices)),
        chosen("threads", &choices.threads.to_string(), &threads_reason),
        chosen("prefetches", &ahead, if speeds.is_empty() { "default" } else { &speeds }),
        chosen("activations", &format_bytes(choices.rows_in_cache as u64), "half of the L2 cache"),
    ];
    if let Some(rows) = choices.amx_least_rows {
        lines.push(chosen("tiles", &format!("from {rows} rows"), "AMX against dot products"));
    }
    lines
}

fn chosen(name: &str, value: &str, reason: &str) -> String {
    format!("  {name:<14}{value:<22}{reason}")
}

fn source(choices: &Choices) -> String {
    let detail = choices.detail.as_deref().unwrap_or_default();
    match choices.source {
        "default" => {
            "defaults; the first `cuelight run` or `serve`, or `cuelight doctor --calibrate`, measures".to_owned()
        }
        "stored" => format!("measured earlier, in {detail}"),
        "measured" => format!("measured now, kept in {detail}"),
        _ => "measured now".to_owned(),
    }
}
