//! `cuelight doctor`: what this machine can do, what Cuelight has chosen for it, and what could be better.
//!
//! - [`report`]: the facts, as plain data
//! - `text`: the report for people
//! - `warnings`: what a user can change

mod report;
mod text;
mod warnings;

use super::terminal::print;
use super::tuning::Tuned;
use super::{CliError, Context};
use report::Report;

/// Show this machine, its measured speed, and what Cuelight has chosen for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight doctor                  the CPU, its speed, the GPUs and the choices
  cuelight doctor --calibrate      measure the choices again, for example on a quiet machine
  cuelight doctor --json           all fields, for programs")]
pub struct Args {
    /// Measure again what the CPU kernels adapt to this machine, and keep the result.
    #[arg(long)]
    calibrate: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the report. Takes a few seconds, because it measures the speed of the memory and the CPU.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let tuned = if args.calibrate { Tuned::measure(&context.config) } else { Tuned::known(&context.config) };
    let mut report = Report::new(&context.config, &tuned);
    report.warnings = warnings::warnings(&report);
    if args.json {
        let value = serde_json::to_value(&report).map_err(CliError::other)?;
        return print(&format!("{value:#}\n"));
    }
    print(&text::text(&report))
}
