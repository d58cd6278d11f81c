//! `cuelight doctor`: what works on this machine, what Cuelight has chosen for it, and what could be better.
//!
//! - [`report`]: the facts, as plain data
//! - `check`: one check, its result and its remedy
//! - `machine`: the checks of the machine, made from the report
//! - `hub`, `storage`, `port`: the checks of network, disk and port
//! - `text`: the report for people

mod check;
mod hub;
mod machine;
mod port;
mod report;
mod storage;
mod text;

use super::terminal::print;
use super::tuning::Tuned;
use super::{CliError, Context};
use crate::config::environment::Environment;
use crate::config::flags::{Flags, HubFlags};
use crate::config::{Config, Given};
use check::{Check, State};
use report::Report;

/// Show what works on this machine, its measured speed, and what Cuelight has chosen for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight doctor              each check with its result, and remedies
  cuelight doctor --calibrate  measure the choices again
  cuelight doctor --offline    ask no hub
  cuelight doctor --json       all fields, for programs

The exit code is 0 unless Cuelight cannot run here with this configuration.")]
pub struct Args {
    /// Measure again what the CPU kernels adapt to this machine, and keep the result.
    #[arg(long)]
    calibrate: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }
}

/// Prints the report. Takes a few seconds, because it measures the speed of the memory and the CPU.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let tuned = if args.calibrate { Tuned::measure(&context.config) } else { Tuned::known(&context.config) };
    let mut report = Report::new(&context.config, &tuned);
    report.checks = machine::checks(&report).into_iter().chain(surroundings(&context.config)).collect();
    if args.json {
        let value = serde_json::to_value(&report).map_err(CliError::other)?;
        print(&format!("{value:#}\n"))?;
    } else {
        print(&text::text(&report))?;
    }
    let unusable = report.checks.iter().find(|check| check.state == State::Unusable);
    match unusable {
        Some(check) => Err(CliError::Failed(format!("Cuelight cannot run here because of the check {}", check.check))),
        None => Ok(()),
    }
}

/// The checks of what is around the machine.
fn surroundings(config: &Config) -> [Check; 5] {
    let proxies = Environment::of_process().proxies();
    [hub::hub(config), hub::proxies(&proxies), storage::cache(config), storage::disk(config), port::port(config)]
}
