//! The command line: one file a subcommand, and what they share.
//!
//! Standard output carries only what was asked for (an answer, a table, JSON); everything said along the way goes to
//! standard error. A failure is one sentence with its causes and a non-zero exit code: 2 for a wrong command line or
//! configuration, 130 after Ctrl-C, 1 for the rest.

pub mod bench;
pub mod compare;
mod completions;
mod config;
mod devices;
mod list;
mod load;
mod model;
mod perplexity;
mod ps;
mod pull;
mod remote;
mod rm;
pub mod run;
mod serve;
mod show;
mod stop;
pub mod terminal;
mod tokenize;

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::causes::with_causes;
use crate::config::environment::Environment;
use crate::config::flags::{Flags, OutputFlags};
use crate::config::{self as configuration, Config, ConfigError, Given};
use crate::hub::{Hub, HubError};
use crate::logging;
use terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  cuelight run demo \"Why is the sky blue?\"       answer one question with the built-in demo model
  cuelight run demo                              chat
  cuelight run org/repo:Q4_K_M                   chat with a model from the hub
  cuelight serve ./model.gguf --port 8080        serve a file over HTTP, as the OpenAI API
  cuelight bench ./model.gguf -p 512 -n 128      measure it

MODEL is the path of a .gguf file (the first one of a sharded model), a hub reference (org/repo, org/repo:quant or
org/repo/file.gguf), or `demo`. Every setting can also come from a configuration file or the environment; see
`cuelight config --help`.";

/// Runs large language models on this machine: chat, serve, measure.
#[derive(Debug, Parser)]
#[command(name = "cuelight", version, after_help = EXAMPLES, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    /// Read this configuration file in place of cuelight/config.toml in the user's configuration directory.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Flags<OutputFlags>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Serve(serve::Args),
    Ps(ps::Args),
    Load(load::Args),
    Stop(stop::Args),
    Pull(pull::Args),
    #[command(visible_alias = "ls")]
    List(list::Args),
    Rm(rm::Args),
    Devices(devices::Args),
    Show(show::Args),
    Tokenize(tokenize::Args),
    Bench(Box<bench::Args>),
    Compare(compare::Args),
    Perplexity(perplexity::Args),
    Config(config::Args),
    Completions(completions::Args),
}

impl Command {
    /// The settings that were given as flags of the subcommand.
    fn given(&self) -> Given {
        match self {
            Command::Run(args) => args.given(),
            Command::Serve(args) => args.given(),
            Command::Show(args) => args.given(),
            Command::Tokenize(args) => args.given(),
            Command::Pull(args) => args.given(),
            Command::Bench(args) => args.given(),
            Command::Compare(args) => args.given(),
            Command::Perplexity(args) => args.given(),
            Command::Config(args) => args.given(),
            Command::Ps(_) | Command::Load(_) | Command::Stop(_) => Given::new(),
            Command::List(_) | Command::Rm(_) | Command::Devices(_) | Command::Completions(_) => Given::new(),
        }
    }

    /// Whether a log would get in the way of what the person reads.
    fn is_quiet(&self) -> bool {
        !matches!(self, Command::Serve(_))
    }

    fn execute(self, context: &Context) -> Result<(), CliError> {
        match self {
            Command::Run(args) => run::execute(args, context),
            Command::Serve(args) => serve::execute(&args, context),
            Command::Ps(args) => ps::execute(&args, context),
            Command::Load(args) => load::execute(&args, context),
            Command::Stop(args) => stop::execute(&args, context),
            Command::Devices(args) => devices::execute(&args, context),
            Command::Show(args) => show::execute(&args, context),
            Command::Tokenize(args) => tokenize::execute(&args, context),
            Command::Pull(args) => pull::execute(&args, context),
            Command::List(args) => list::execute(&args, context),
            Command::Rm(args) => rm::execute(&args, context),
            Command::Bench(args) => bench::execute(&args, context),
            Command::Compare(args) => compare::execute(&args, context),
            Command::Perplexity(args) => perplexity::execute(&args, context),
            Command::Config(args) => config::execute(&args, context),
            Command::Completions(args) => completions::execute(&args, Cli::command()),
        }
    }
}

/// What every subcommand is given.
#[derive(Debug)]
pub struct Context {
    /// The settings.
    pub config: Config,
    /// The configuration file that was read, if any.
    pub config_file: Option<PathBuf>,
    /// The folders in which the system looks for programs.
    pub search_path: Vec<PathBuf>,
    /// How to talk to the person.
    pub terminal: Terminal,
}

impl Context {
    /// Where models come from.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::new(&self.config)
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A wrong setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A wrong combination of arguments.
    #[error("{0}")]
    Usage(String),
    /// No model.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Something else that one sentence tells.
    #[error("{0}")]
    Failed(String),
    /// Something else that an error of ours tells.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
    /// A file or a stream.
    #[error("cannot {what}")]
    Io {
        /// "read the prompt from FILE"
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// Wraps an error that speaks for itself.
    pub fn other(error: impl Error + Send + Sync + 'static) -> Self {
        CliError::Other(Box::new(error))
    }

    /// For `map_err` on an input or output error: `what` completes "cannot …".
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| CliError::Io { what: what.into(), source }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            CliError::Config(_) | CliError::Usage(_) => 2,
            CliError::Interrupted => 130,
            _ => 1,
        })
    }
}

/// Runs the program with the process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(expand_short_words(std::env::args_os().collect())) {
        Ok(cli) => cli,
        // Help and version too: clap knows which stream and which exit code they have.
        Err(error) => error.exit(),
    };
    match execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as in `cuelight list | head -1`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            error.exit_code()
        }
    }
}

fn execute(cli: Cli) -> Result<(), CliError> {
    let environment = Environment::of_process();
    let mut given = cli.command.given();
    given.extend(cli.output.given());
    let resolved = configuration::resolve(cli.config, &environment, given)?;
    logging::start(&resolved.config, cli.command.is_quiet());
    let terminal = Terminal::new(resolved.config.color);
    for warning in &resolved.warnings {
        terminal.notice(&format!("warning: {warning}"));
    }
    let search_path = environment.search_path();
    cli.command.execute(&Context { config: resolved.config, config_file: resolved.file, search_path, terminal })
}

/// llama-bench's `-pg` has two letters after one dash, which clap would read as `-p g`.
fn expand_short_words(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|subcommand| subcommand != "bench") {
        return arguments;
    }
    arguments.into_iter().map(|argument| if argument == "-pg" { "--pg".into() } else { argument }).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_bench_has_the_two_letter_flag() {
        let expanded = |words: &[&str]| expand_short_words(words.iter().map(OsString::from).collect());
        assert_eq!(expanded(&["cuelight", "bench", "m", "-pg", "8,8"])[3], "--pg");
        assert_eq!(expanded(&["cuelight", "run", "m", "-pg"])[3], "-pg");
    }

    #[test]
    fn causes_are_told_once() {
        let cause = io::Error::other("the disk is full");
        let error = CliError::Io { what: "write x".into(), source: cause };
        assert_eq!(with_causes(&error), "cannot write x: the disk is full");
        assert_eq!(with_causes(&CliError::other(error)), "cannot write x: the disk is full");
    }
}
