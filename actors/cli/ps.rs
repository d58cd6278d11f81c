//! `cuelight ps`: the models of a running server.

use serde_json::Value;

use super::remote::RemoteArgs;
use super::terminal::{Align, print, table};
use super::{CliError, Context};
use crate::config::ByteSize;

/// Show the models of a running server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight ps                            the server on this machine
  cuelight ps --url http://gpu-box:8080  another server
  cuelight ps --all                      also models that are not loaded
  cuelight ps --json                     all fields, for programs")]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Also show models that are not loaded.
    #[arg(long, short)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let report = args.remote.server(&context.config)?.get("/models")?;
    if args.json {
        return print(&format!("{report:#}\n"));
    }
    let models: Vec<&Value> = report["data"].as_array().into_iter().flatten().collect();
    let (hidden, shown): (Vec<&Value>, Vec<&Value>) =
        models.into_iter().partition(|model| !args.all && model["state"] == "unloaded");
    if !shown.is_empty() {
        let rows: Vec<Vec<String>> = shown.into_iter().map(row).collect();
        print(&table(&COLUMNS, &rows))?;
    }
    if !hidden.is_empty() {
        context.terminal.notice(&format!("{} more not loaded; --all shows them", hidden.len()));
    }
    Ok(())
}

const COLUMNS: [(&str, Align); 8] = [
    ("NAME", Align::Left),
    ("STATE", Align::Left),
    ("SIZE", Align::Right),
    ("DEVICE", Align::Left),
    ("CONTEXT", Align::Right),
    ("RUNNING", Align::Right),
    ("WAITING", Align::Right),
    ("UNLOADS IN", Align::Left),
];

fn row(model: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let number = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string());
    let size = &model["memory"]["total_bytes"];
    let requests = &model["requests"];
    let waiting = requests["waiting"].as_u64().unwrap_or(0) + requests["waiting_for_load"].as_u64().unwrap_or(0);
    vec![
        text(&model["id"]),
        state(model),
        size.as_u64().map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
        text(&model["device"]),
        number(&model["context_tokens"]),
        number(&requests["running"]),
        waiting.to_string(),
        model["unloads_in_seconds"].as_f64().map_or_else(|| "-".to_owned(), remaining),
    ]
}

/// The state, with the progress of loading.
fn state(model: &Value) -> String {
    let state = model["state"].as_str().unwrap_or("-");
    let progress = &model["status"]["progress"];
    match (progress["done_bytes"].as_u64(), progress["total_bytes"].as_u64()) {
        (Some(done), Some(total)) if total > 0 => format!("{state} {}%", done.saturating_mul(100) / total),
        _ => state.to_owned(),
    }
}

/// A remaining time: "4m 10s".
fn remaining(seconds: f64) -> String {
    // `as` converts a negative number to 0.
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (hours, minutes, _) => format!("{hours}h {minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_a_dash() {
        let loaded = json!({
            "id": "a", "state": "ready", "device": "CPU", "context_tokens": 2048, "memory": { "total_bytes": 3 << 20 },
            "requests": { "running": 2, "waiting": 1, "waiting_for_load": 0 }, "unloads_in_seconds": 250.2,
        });
        assert_eq!(row(&loaded), ["a", "ready", "3.0 MiB", "CPU", "2048", "2", "1", "4m 10s"]);
        let loading = json!({
            "id": "b", "state": "loading", "requests": { "waiting_for_load": 3 },
            "status": { "progress": { "done_bytes": 1, "total_bytes": 3 } },
        });
        assert_eq!(row(&loading), ["b", "loading 33%", "-", "-", "-", "-", "3", "-"]);
    }

    #[test]
    fn remaining_times_have_at_most_two_units() {
        assert_eq!([remaining(0.4), remaining(59.6), remaining(7261.0)], ["0s", "1m 0s", "2h 1m"]);
    }
}
