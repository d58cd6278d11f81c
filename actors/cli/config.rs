//! `cuelight config`: the current settings, and the source of each.

use super::terminal::print;
use super::{CliError, Context};
use crate::config::flags::{AllFlags, Flags};
use crate::config::{Given, Section, markdown};

/// Print the configuration as a TOML file with the source of each value.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A setting comes from the first of these sources that has it:
  1. a flag                        --max-seqs 32
  2. the environment               CUELIGHT_MAX_SEQS=32
  3. the configuration file        max_seqs = 32, under [model]
  4. its default

The file is the one that --config or CUELIGHT_CONFIG names, else cuelight/config.toml in $XDG_CONFIG_HOME or ~/.config. The \
output of this command is a valid configuration file, in which defaults and secrets are comments. Write it to another file than the \
one that is read, which the shell empties first:
  cuelight config > new.toml
HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and NO_COLOR have their usual meanings.")]
pub struct Args {
    /// Print the tables of docs/configuration.md.
    #[arg(long, hide = true)]
    markdown: bool,
    #[command(flatten)]
    flags: Flags<AllFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }
}

/// Prints the configuration.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    if args.markdown {
        let sections = Section::ALL.iter();
        let tables: Vec<String> =
            sections.map(|&section| format!("## [{}]\n\n{}", section.name(), markdown(section))).collect();
        return print(&tables.join("\n"));
    }
    let source = match &context.config_file {
        Some(path) => format!("# Configuration file: {}\n\n", path.display()),
        None => "# No configuration file.\n\n".to_owned(),
    };
    print(&format!("{source}{}", context.config.to_toml()))
}
