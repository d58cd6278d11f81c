//! `cuelight man`: manual pages, for packages.

use std::path::PathBuf;

use super::CliError;

/// Write manual pages for all commands into a directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes a page for the program and one for each subcommand.
pub fn execute(args: &Args, command: clap::Command) -> Result<(), CliError> {
    let what = format!("write manual pages into {}", args.directory.display());
    let created = std::fs::create_dir_all(&args.directory);
    created.and_then(|()| clap_mangen::generate_to(command, &args.directory)).map_err(CliError::io(what))
}
