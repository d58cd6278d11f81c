//! The command line: one file per subcommand, and what they share.
//!
//! Standard output carries only what the user asked for (an answer, a table, JSON); everything else goes to standard
//! error. A failure is one sentence with its causes and a non-zero exit code: 2 for a wrong command line or
//! configuration, 130 after Ctrl-C, 1 for the rest.

mod api_keys;
mod async_runtime;
mod batch;
mod batches;
pub mod bench;
pub mod compare;
mod completions;
mod config;
mod context;
mod convert;
mod devices;
mod doctor;
mod draft;
mod echo;
mod error;
mod found_model;
mod gguf_copy;
mod hints;
mod imatrix;
mod kv_options;
mod list;
mod load;
mod local_routes;
mod lora;
mod man;
mod media;
mod model;
mod model_help;
mod model_name;
mod named_models;
mod observed;
mod open_files;
mod perplexity;
mod ps;
mod pull;
mod quantize;
mod quantized;
mod ready;
mod remote;
mod replay;
mod rm;
pub mod run;
mod serve;
mod served_name;
mod server_address;
mod server_memory;
mod server_options;
mod show;
mod style;
mod template_worker;
pub mod terminal;
mod text_file;
mod tokenize;
mod transcribe;
mod tuning;
mod unknown_flags;
mod w8a8;
mod word_wrap;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::environment::Environment;
use crate::config::flags::{Flags, OutputFlags};
use crate::config::{Given, Resolved};
use crate::logging;
use terminal::Terminal;

pub use context::{ConfigSource, Context};
pub use error::CliError;

const EXAMPLES: &str = "\
Examples:
  cuelight run demo                          chat with the demo model
  cuelight run demo Why is the sky blue      answer one question
  cuelight run org/repo:Q4_K_M               chat with a model from the hub
  cuelight serve ./model.gguf --port 8080    serve a file with OpenAI's API
  cuelight bench ./model.gguf -p 512 -n 128  measure its speed

MODEL is a .gguf file (of a sharded model the first one), a Hugging Face directory, org/repo[:quant] or org/repo/file.gguf on \
the hub, ollama://name:tag, or demo. Every setting can also be set in a configuration file or the \
environment; see `cuelight config --help`.";

/// What the program prints when it is called without arguments.
const WELCOME: &str = "\
Cuelight runs large language models on this machine. Three commands to try:

  cuelight run demo      chat with a small demo model (a download of 94 MiB)
  cuelight serve demo    serve it with the OpenAI API on port 8080
  cuelight bench demo    measure how fast it runs here

`cuelight --help` lists all commands.
";

/// Runs large language models on this machine: chat, serve, measure.
#[derive(Debug, Parser)]
#[command(name = "cuelight", version, after_help = EXAMPLES, max_term_width = 120)]
struct Cli {
    /// Read this configuration file instead of cuelight/config.toml in the user's configuration directory.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Flags<OutputFlags>,
    #[command(subcommand)]
    command: AnyCommand,
}

#[derive(Debug, Subcommand)]
enum AnyCommand {
    #[command(flatten)]
    Configured(Command),
    // These need no settings, and work while the configuration has a mistake.
    Completions(completions::Args),
    Man(man::Args),
}

/// The commands that have settings.
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Serve(serve::Args),
    Ps(ps::Args),
    Load(load::LoadArgs),
    Stop(load::StopArgs),
    Pull(pull::Args),
    #[command(visible_alias = "ls")]
    List(list::Args),
    Rm(rm::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Show(show::Args),
    Tokenize(tokenize::Args),
    Bench(Box<bench::Args>),
    Compare(compare::Args),
    Perplexity(perplexity::Args),
    Replay(replay::Args),
    Batch(batch::Args),
    Transcribe(transcribe::Args),
    Quantize(quantize::Args),
    Imatrix(imatrix::Args),
    Convert(convert::Args),
    Config(config::Args),
}

impl Command {
    /// The settings given as flags of the subcommand.
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
            Command::Replay(args) => args.given(),
            Command::Batch(args) => args.given(),
            Command::Transcribe(args) => args.given(),
            Command::Quantize(args) => args.given(),
            Command::Imatrix(args) => args.given(),
            Command::Convert(args) => args.given(),
            Command::Config(args) => args.given(),
            Command::Ps(_) | Command::Load(_) | Command::Stop(_) => Given::new(),
            Command::List(_) | Command::Rm(_) | Command::Devices(_) => Given::new(),
            Command::Doctor(args) => args.given(),
        }
    }

    /// Whether log lines would disturb the output.
    fn is_quiet(&self) -> bool {
        !matches!(self, Command::Serve(_))
    }

    fn execute(self, context: &Context) -> Result<(), CliError> {
        match self {
            Command::Run(args) => run::execute(&args, context),
            Command::Serve(args) => serve::execute(&args, context),
            Command::Ps(args) => ps::execute(&args, context),
            Command::Load(args) => load::load(&args, context),
            Command::Stop(args) => load::stop(&args, context),
            Command::Devices(args) => devices::execute(&args, context),
            Command::Doctor(args) => doctor::execute(&args, context),
            Command::Show(args) => show::execute(&args, context),
            Command::Tokenize(args) => tokenize::execute(&args, context),
            Command::Pull(args) => pull::execute(&args, context),
            Command::List(args) => list::execute(&args, context),
            Command::Rm(args) => rm::execute(&args, context),
            Command::Bench(args) => bench::execute(&args, context),
            Command::Compare(args) => compare::execute(&args, context),
            Command::Perplexity(args) => perplexity::execute(&args, context),
            Command::Replay(args) => replay::execute(&args, context),
            Command::Batch(args) => batch::execute(&args, context),
            Command::Transcribe(args) => transcribe::execute(&args, context),
            Command::Quantize(args) => quantize::execute(&args, context),
            Command::Imatrix(args) => imatrix::execute(&args, context),
            Command::Convert(args) => convert::execute(&args, context),
            Command::Config(args) => config::execute(&args, context),
        }
    }
}

/// Runs the program with the process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.len() < 2 {
        eprint!("{WELCOME}");
        return ExitCode::from(2);
    }
    if arguments[1] == template_worker::SUBCOMMAND {
        return template_worker::main(&arguments[2..]);
    }
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        // Help and version too: clap chooses their stream and exit code.
        Err(error) => error.exit(),
    };
    let code = exit_code(match cli.command {
        AnyCommand::Configured(command) => execute(command, cli.output.given(), cli.config),
        AnyCommand::Completions(args) => completions::execute(&args, command()),
        AnyCommand::Man(args) => man::execute(&args, command()),
    });
    logging::flush();
    code
}

/// Prints the error, if any, and returns the exit code.
fn exit_code(result: Result<(), CliError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe, as in `cuelight list | head -1`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            logging::failure(&hints::explain(&error));
            error.exit_code()
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let expanded = unknown_flags::with_two_dashes(expand_pg(arguments.to_vec()));
    let matches = command().try_get_matches_from(expanded);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| unknown_flags::with_tip(error, &subcommand(arguments)))
}

/// The subcommand by its name: "run", "bench serve".
fn subcommand(arguments: &[OsString]) -> String {
    let mut words = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
    match (words.next(), words.next()) {
        (Some("bench"), Some("serve")) => "bench serve".to_owned(),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// The clap command. `run --help` begins with the settings that a chat user needs first.
fn command() -> clap::Command {
    let command = Cli::command().mut_subcommand("run", |run| {
        let first = |arg: clap::Arg| arg.help_heading(Resettable::Reset).hide_short_help(false);
        let run = run::FIRST_SETTINGS.iter().fold(run, |run, &setting| run.mut_arg(setting, first));
        run.mut_arg("max_seqs", |arg| arg.help("Most sequences computed at once; a chat needs one [default: 1]"))
            .mut_arg("lora", |arg| {
                arg.help(
                    "Low-rank adapter to answer with, a GGUF file or a PEFT directory, as NAME=PATH or NAME=PATH:SCALE",
                )
            })
    });
    let without = |command: clap::Command| {
        SETTINGS_OF_SERVERS.iter().fold(command, |command, &setting| command.mut_arg(setting, |arg| arg.hide(true)))
    };
    let command = command.mut_subcommand("convert", |convert| {
        let convert = convert.mut_arg("model", |arg| arg.help("The Hugging Face directory or repository to read"));
        convert.mut_arg("out", |arg| arg.help("The GGUF file to write"))
    });
    ["run", "show", "replay", "batch"].into_iter().fold(command, |command, name| command.mut_subcommand(name, without))
}

/// Settings of models that only `serve` uses: other commands have no other servers, and write no timeline.
const SETTINGS_OF_SERVERS: [&str; 4] = ["kv_share", "kv_peer", "kv_peer_key", "profile_ops"];

/// Runs a command with its settings, those of all commands, and the configuration file that is named, if one is.
fn execute(command: Command, output: Given, file: Option<PathBuf>) -> Result<(), CliError> {
    let environment = Environment::of_process();
    let mut given = command.given();
    given.extend(output);
    let source = ConfigSource { file, given };
    let resolved = source.resolve()?;
    logging::start(&resolved.config, command.is_quiet());
    let terminal = Terminal::new(resolved.config.color);
    for warning in &resolved.warnings {
        terminal.notice(&format!("warning: {warning}"));
    }
    let search_path = environment.search_path();
    let Resolved { config, file, .. } = resolved;
    command.execute(&Context { config, config_file: file, search_path, terminal, source, tuned: Arc::default() })
}

/// llama-bench's `-pg` has two letters after one dash. clap would read it as `-p g`.
fn expand_pg(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|subcommand| subcommand != "bench") {
        return arguments;
    }
    arguments.into_iter().map(|argument| if argument == "-pg" { "--pg".into() } else { argument }).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    /// The texts of help that were not made from settings: those after the lists, of a command and of its subcommands.
    fn texts(command: &clap::Command) -> Vec<String> {
        let own = command.get_after_help().map(ToString::to_string);
        own.into_iter().chain(command.get_subcommands().flat_map(texts)).collect()
    }

    #[test]
    fn examples_fit_a_terminal_of_eighty_columns_and_prose_is_broken_by_clap() {
        let texts: Vec<String> = texts(&command()).into_iter().chain([WELCOME.to_owned()]).collect();
        assert!(texts.len() > 15, "{}", texts.len());
        let lines: Vec<&str> = texts.iter().flat_map(|text| text.lines()).collect();
        for line in lines.iter().filter(|line| line.starts_with(' ')) {
            assert!(line.chars().count() < 80, "{line}");
        }
        for pair in lines.windows(2) {
            let is_prose = |line: &str| line.len() > 80 && !line.starts_with(' ');
            assert!(!(is_prose(pair[0]) && is_prose(pair[1])), "one paragraph, one line: {}", pair[0]);
        }
    }

    #[test]
    fn help_leaves_out_what_only_a_server_uses() {
        let help = |name: &str| {
            let mut all = command();
            all.find_subcommand_mut(name).unwrap().render_long_help().to_string()
        };
        for name in ["run", "show", "replay", "batch"] {
            let lists = |setting: &str| help(name).contains(&format!("--{}", setting.replace('_', "-")));
            assert!(!SETTINGS_OF_SERVERS.iter().any(|setting| lists(setting)), "{name}");
        }
        assert!(help("serve").contains("--kv-share") && help("serve").contains("--profile-ops"));
        for name in
            ["run", "serve", "show", "tokenize", "bench", "perplexity", "replay", "batch", "quantize", "imatrix"]
        {
            assert!(help(name).contains("ollama://name:tag"), "{name}");
        }
    }

    #[test]
    fn only_bench_expands_the_two_letter_flag() {
        let expanded = |words: &[&str]| expand_pg(words.iter().map(OsString::from).collect());
        assert_eq!(expanded(&["cuelight", "bench", "m", "-pg", "8,8"])[3], "--pg");
        assert_eq!(expanded(&["cuelight", "run", "m", "-pg"])[3], "-pg");
    }
}
