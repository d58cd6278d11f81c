//! `cuelight completions`: completion scripts for shells.

use clap_complete::Shell;

use super::CliError;
use super::terminal::print;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight completions bash \\
    > ~/.local/share/bash-completion/completions/cuelight
  cuelight completions zsh > \"${fpath[1]}/_cuelight\"
  cuelight completions fish > ~/.config/fish/completions/cuelight.fish
  cuelight completions powershell >> $PROFILE")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub fn execute(args: &Args, mut command: clap::Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "cuelight", &mut script);
    print(&String::from_utf8_lossy(&script))
}
