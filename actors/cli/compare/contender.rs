//! The compared programs and their command lines: this program first, then the peers.

use std::path::{Path, PathBuf};

use cuelight_engine::load::ActivationBits;
use tokio::process::Command;

use super::build_flags::{BenchFlags, DepthFlag, ServerFlags};
use super::peer::Peer;

/// The name that both servers give the model.
pub const MODEL_NAME: &str = "compared";

/// Whether a peer computes attention in one fused operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum FlashAttention {
    /// Not fused.
    Off,
    /// Fused.
    On,
}

impl FlashAttention {
    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FlashAttention::Off => "fa off",
            FlashAttention::On => "fa on",
        }
    }

    /// The value that builds of every age accept.
    fn value(self) -> &'static str {
        match self {
            FlashAttention::Off => "0",
            FlashAttention::On => "1",
        }
    }
}

/// The settings of a server to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPlan {
    /// The port on 127.0.0.1.
    pub port: u16,
    /// Maximum sequences at once.
    pub slots: usize,
    /// Maximum tokens of a sequence.
    pub slot_tokens: usize,
    /// Number of compute threads.
    pub threads: usize,
}

/// The settings of an engine benchmark, in llama-bench's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchPlan {
    /// Prompt lengths.
    pub prompts: Vec<usize>,
    /// Tokens to generate; 0 for none.
    pub generated: usize,
    /// Tokens in the cache before the test.
    pub depth: usize,
    /// Number of compute threads.
    pub threads: usize,
}

/// A compared program.
#[derive(Debug, Clone)]
pub struct Contender {
    /// The name in the table.
    pub name: String,
    programs: Programs,
}

#[derive(Debug, Clone)]
enum Programs {
    Ours(OwnProgram),
    Peer { peer: Peer, bench_flags: BenchFlags, server_flags: ServerFlags, flash_attention: Vec<FlashAttention> },
}

/// This program.
#[derive(Debug, Clone)]
pub struct OwnProgram {
    /// Its file.
    pub program: PathBuf,
    /// Its configuration file.
    pub config_file: Option<PathBuf>,
    /// An API key that its server requires.
    pub api_key: Option<String>,
    /// Bits of activations in its integer kernels.
    pub activation_bits: ActivationBits,
}

impl Contender {
    /// This program.
    #[must_use]
    pub fn ours(own: OwnProgram) -> Self {
        Contender { name: format!("cuelight {}", env!("CARGO_PKG_VERSION")), programs: Programs::Ours(own) }
    }

    /// A peer, with the settings to measure.
    #[must_use]
    pub fn peer(name: String, peer: Peer, flash_attention: Vec<FlashAttention>) -> Self {
        let bench_flags = BenchFlags::of_help(&peer.bench_help());
        let server_flags = ServerFlags::of_help(&peer.server_help());
        Contender { name, programs: Programs::Peer { peer, bench_flags, server_flags, flash_attention } }
    }

    /// Whether it is this program.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self.programs, Programs::Ours(_))
    }

    /// The name with the directory.
    #[must_use]
    pub fn describe(&self) -> String {
        let folder = self.folder().display().to_string();
        if self.name.contains(&folder) { self.name.clone() } else { format!("{} in {folder}", self.name) }
    }

    /// The directory of its programs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        match &self.programs {
            Programs::Ours(own) => own.program.parent().unwrap_or(&own.program),
            Programs::Peer { peer, .. } => &peer.folder,
        }
    }

    /// The name with a setting.
    #[must_use]
    pub fn with_setting(&self, setting: Option<FlashAttention>) -> String {
        setting.map_or_else(|| self.name.clone(), |setting| format!("{} ({})", self.name, setting.name()))
    }

    /// The settings to measure.
    #[must_use]
    pub fn settings(&self) -> Vec<Option<FlashAttention>> {
        match &self.programs {
            Programs::Ours(_) => vec![None],
            Programs::Peer { flash_attention, .. } => flash_attention.iter().copied().map(Some).collect(),
        }
    }

    /// Whether it has an engine benchmark.
    #[must_use]
    pub fn has_bench(&self) -> bool {
        !matches!(&self.programs, Programs::Peer { peer: Peer { bench: None, .. }, .. })
    }

    /// Whether it has a server.
    #[must_use]
    pub fn has_server(&self) -> bool {
        !matches!(&self.programs, Programs::Peer { peer: Peer { server: None, .. }, .. })
    }

    /// The API key that its server requires.
    #[must_use]
    pub fn api_key(&self) -> Option<String> {
        match &self.programs {
            Programs::Ours(own) => own.api_key.clone(),
            Programs::Peer { .. } => None,
        }
    }

    /// The command of the engine benchmark, which prints llama-bench's JSON; `None` without one.
    #[must_use]
    pub fn bench(&self, model: &Path, plan: &BenchPlan, setting: Option<FlashAttention>) -> Option<Command> {
        let mut command = match &self.programs {
            Programs::Ours(own) => own.command("bench", model),
            Programs::Peer { peer, .. } => {
                let mut command = Command::new(peer.bench.as_ref()?);
                command.arg("-m").arg(model);
                command
            }
        };
        let after_prompt = plan.depth > 0 && self.bench_flags().depth == DepthFlag::AfterPrompt;
        let prompts: Vec<String> = plan.prompts.iter().map(usize::to_string).collect();
        let prompts = if prompts.is_empty() { "0".to_owned() } else { prompts.join(",") };
        let generated = if after_prompt { 0 } else { plan.generated };
        command.args(["-p", &prompts, "-n", &generated.to_string(), "-r", "1", "-o", "json"]);
        command.args(["-t", &plan.threads.to_string()]);
        if after_prompt {
            command.args(["-gp", &format!("{},{}", plan.depth, plan.generated)]);
        } else if plan.depth > 0 {
            // Older builds do not know this flag.
            command.args(["-d", &plan.depth.to_string()]);
        }
        if self.bench_flags().repacks {
            command.args(["-rtr", "1"]);
        }
        if let Some(setting) = setting {
            command.args(["-fa", setting.value()]);
        }
        Some(command)
    }

    fn bench_flags(&self) -> BenchFlags {
        match &self.programs {
            Programs::Ours(_) => BenchFlags::default(),
            Programs::Peer { bench_flags, .. } => *bench_flags,
        }
    }

    /// The command that serves the model as [`MODEL_NAME`]; `None` without a server.
    #[must_use]
    pub fn server(&self, model: &Path, plan: &ServerPlan, setting: Option<FlashAttention>) -> Option<Command> {
        let (port, slots, threads) = (plan.port.to_string(), plan.slots.to_string(), plan.threads.to_string());
        match &self.programs {
            Programs::Ours(own) => {
                let mut command = own.command("serve", model);
                command.args(["--host", "127.0.0.1", "--port", &port, "--alias", MODEL_NAME]);
                command.args(["--threads", &threads, "--max-seqs", &slots]);
                command.args(["--ctx-size", &plan.slot_tokens.to_string()]);
                Some(command)
            }
            Programs::Peer { peer, server_flags, .. } => {
                let mut command = Command::new(peer.server.as_ref()?);
                command.arg("-m").arg(model).args(["--host", "127.0.0.1", "--port", &port, "--alias", MODEL_NAME]);
                // llama-server's context is that of all slots together.
                let tokens = (plan.slots * plan.slot_tokens).to_string();
                command.args(["--threads", &threads, "-np", &slots, "-c", &tokens]);
                match setting {
                    Some(setting) if server_flags.flash_attention_value => {
                        command.args(["-fa", setting.value()]);
                    }
                    Some(FlashAttention::On) => {
                        command.arg("-fa");
                    }
                    Some(FlashAttention::Off) | None => {}
                }
                if server_flags.repacks {
                    command.arg("-rtr");
                }
                if server_flags.cache_ram {
                    // No prompt repeats, so a prompt cache would only cost time and memory.
                    command.args(["--cache-ram", "0"]);
                }
                Some(command)
            }
        }
    }
}

impl OwnProgram {
    /// A command of this program on a model.
    fn command(&self, subcommand: &str, model: &Path) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(file) = &self.config_file {
            command.arg("--config").arg(file);
        }
        command.arg(subcommand).arg(model).args(["--activation-bits", &self.activation_bits.to_string()]);
        command
    }
}

#[cfg(test)]
impl Contender {
    /// A peer whose programs do not exist and whose help texts are these.
    pub fn absent_peer(name: &str, bench_help: &str, server_help: &str) -> Self {
        let peer =
            Peer { folder: "/p".into(), bench: Some("/p/llama-bench".into()), server: Some("/p/llama-server".into()) };
        let programs = Programs::Peer {
            peer,
            bench_flags: BenchFlags::of_help(bench_help),
            server_flags: ServerFlags::of_help(server_help),
            flash_attention: vec![FlashAttention::Off, FlashAttention::On],
        };
        Contender { name: name.to_owned(), programs }
    }

    /// This program, with a configuration file.
    pub fn absent_ours() -> Self {
        Contender::ours(OwnProgram {
            program: "/bin/cuelight".into(),
            config_file: Some("/c.toml".into()),
            api_key: None,
            activation_bits: ActivationBits::Fifteen,
        })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn line(command: Option<Command>) -> String {
        let command = command.unwrap();
        let words = std::iter::once(command.as_std().get_program()).chain(command.as_std().get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_engines_get_the_same_settings() {
        let plan = BenchPlan { prompts: vec![512, 2048], generated: 128, depth: 0, threads: 2 };
        let same = "-p 512,2048 -n 128 -r 1 -o json -t 2";
        let model = Path::new("m.gguf");
        assert_eq!(
            line(Contender::absent_ours().bench(model, &plan, None)),
            format!("/bin/cuelight --config /c.toml bench m.gguf --activation-bits 15 {same}")
        );
        let peer = Contender::absent_peer("p", "", "");
        let on = peer.bench(model, &plan, Some(FlashAttention::On));
        assert_eq!(line(on), format!("/p/llama-bench -m m.gguf {same} -fa 1"));
        let deep = BenchPlan { prompts: vec![], generated: 128, depth: 2048, threads: 2 };
        assert!(
            line(Contender::absent_ours().bench(model, &deep, None)).ends_with("-p 0 -n 128 -r 1 -o json -t 2 -d 2048")
        );
        let fork =
            Contender::absent_peer("ik", "-gp <pp,tg>\n-rtr, --run-time-repack <0|1>", "-rtr, --run-time-repack");
        let repacked = line(fork.bench(model, &deep, Some(FlashAttention::On)));
        assert_eq!(repacked, "/p/llama-bench -m m.gguf -p 0 -n 0 -r 1 -o json -t 2 -gp 2048,128 -rtr 1 -fa 1");
        let plan = ServerPlan { port: 5000, slots: 1, slot_tokens: 512, threads: 2 };
        assert!(line(fork.server(model, &plan, None)).ends_with(" -c 512 -rtr"));
    }

    #[test]
    fn both_servers_get_the_same_slots() {
        let plan = ServerPlan { port: 5000, slots: 32, slot_tokens: 512, threads: 2 };
        let ours = line(Contender::absent_ours().server(Path::new("m.gguf"), &plan, None));
        for words in ["serve m.gguf", "--port 5000", "--threads 2", "--max-seqs 32", "--ctx-size 512"] {
            assert!(ours.contains(words), "{words}: {ours}");
        }
        let theirs = |help: &str, setting| {
            line(Contender::absent_peer("p", "", help).server(Path::new("m.gguf"), &plan, Some(setting)))
        };
        let new = theirs("-fa, --flash-attn [on|off|auto]\n-cram, --cache-ram N", FlashAttention::Off);
        for words in ["-m m.gguf", "--port 5000", "--threads 2", "-np 32", "-c 16384", "-fa 0", "--cache-ram 0"] {
            assert!(new.contains(words), "{words}: {new}");
        }
        assert!(theirs("-fa, --flash-attn  enable", FlashAttention::On).ends_with(" -fa"));
        assert!(!theirs("-fa, --flash-attn  enable", FlashAttention::Off).contains("-fa"));
    }
}
