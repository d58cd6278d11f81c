//! Every setting of Cuelight in one table, and its resolution: defaults, then a TOML file, then the environment, then flags.
//!
//! [`SETTINGS`] is the one place where a setting is named, described, typed and given its default. The key in the file,
//! the environment variable, the flag, the help text and what `cuelight config` prints all come from that row. The result
//! is one [`Config`], made once at start and passed down; nothing else reads the environment.

pub mod environment;
mod file;
pub mod flags;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::executor::OverlapMode;
use cuelight_engine::load::{
    ActivationBits, ComputeDevice, CpuExperts, Devices, ExpertStreaming, Kernel, KvType, Shares,
};

use crate::metrics::exposition::Compat;
use crate::models::KeepAlive;
use environment::{Environment, Home};
use value::SettingValue;
pub use value::{ByteSize, Color, LogFormat, LogLevel, Probability, Raw, Secret, Secrets, Temperature, ValueKind};

/// A group of settings: a table of the configuration file and a heading of `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// How a model is loaded.
    Model,
    /// How requests are scheduled and served over HTTP.
    Server,
    /// How `cuelight run` chooses tokens.
    Sampling,
    /// Where models come from and are kept.
    Hub,
    /// What is said to the person and to the log.
    Output,
}

impl Section {
    /// In the order they are shown.
    pub const ALL: &[Section] = &[Section::Model, Section::Server, Section::Sampling, Section::Hub, Section::Output];

    /// The table's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Section::Model => "model",
            Section::Server => "server",
            Section::Sampling => "sampling",
            Section::Hub => "hub",
            Section::Output => "output",
        }
    }

    /// The heading in `--help`.
    #[must_use]
    pub fn heading(self) -> &'static str {
        match self {
            Section::Model => "Model and memory",
            Section::Server => "Server",
            Section::Sampling => "Sampling",
            Section::Hub => "Where models come from",
            Section::Output => "Output",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Where it belongs.
    pub section: Section,
    /// Its key in the file; with dashes its flag.
    pub name: &'static str,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
    /// What stands for its value in help: "TOKENS".
    pub value_name: &'static str,
    /// Environment variables of other programs that set it too, weaker than `CUELIGHT_…`.
    pub also: &'static [&'static str],
    /// Whether it has a flag; a secret in a command line would be seen by every user of the machine.
    pub has_flag: bool,
    /// Whether it is a switch, one value or several.
    pub kind: ValueKind,
    /// Tells what is wrong with a value.
    check: fn(&Raw) -> Result<(), String>,
}

impl Setting {
    /// Its key with the section: "server.port".
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}.{}", self.section.name(), self.name)
    }

    /// Its own environment variable: "CUELIGHT_PORT".
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{}{}", environment::PREFIX, self.name.to_uppercase())
    }

    /// Its flag without the leading dashes: "max-seqs".
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The table.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, without its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// Values that were given, by setting name; the strongest source wins.
pub type Given = BTreeMap<&'static str, (Raw, Origin)>;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file named by `--config` cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: this is not valid TOML: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A key that is not in the table.
    #[error("{}:{line}: unknown setting {key:?}{}", path.display(), did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key as written, with its table.
        key: String,
        /// The nearest key there is.
        suggestion: Option<String>,
    },
    /// A value the setting cannot take.
    #[error("{origin}: bad value for {key}: {reason}")]
    BadValue {
        /// Where it was given.
        origin: Origin,
        /// The setting.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An environment variable that is not text.
    #[error("environment variable {0} is not valid UTF-8")]
    NotText(String),
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|key| format!(" (did you mean {key:?}?)")).unwrap_or_default()
}

/// Declares [`SETTINGS`] and [`Config`] from one row a setting:
/// documentation, name, type, default, what stands for the value in help, foreign variables, and whether it has a flag.
macro_rules! settings {
    (|$home:ident| $($section:ident {
        $( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $value_name:literal
            $(, also $also:expr)? $(, has_flag = $has_flag:literal)?; )+
    })+) => {
        /// The table of all settings.
        pub const SETTINGS: &[Setting] = &[$($( Setting {
            section: Section::$section,
            name: stringify!($name),
            doc: concat!($($doc),+),
            value_name: $value_name,
            also: { #[allow(unused_mut, unused_assignments)] { let mut also: &[&str] = &[]; $( also = $also; )? also } },
            has_flag: true $( && $has_flag )?,
            kind: <$type as SettingValue>::KIND,
            check: |raw| <$type as SettingValue>::from_raw(raw).map(drop),
        } ),+),+];

        /// What the process runs with.
        #[derive(Debug, Clone)]
        pub struct Config {
            $($( $(#[doc = $doc])+ pub $name: $type, )+)+
            origins: BTreeMap<&'static str, Origin>,
        }

        impl Config {
            /// What holds when nothing is said.
            #[must_use]
            pub fn defaults($home: &Home) -> Self {
                Config { $($( $name: $default, )+)+ origins: BTreeMap::new() }
            }

            /// Takes the given values over.
            fn apply(&mut self, mut given: Given) -> Result<(), ConfigError> {
                $($( if let Some((raw, origin)) = given.remove(stringify!($name)) {
                    self.$name = <$type as SettingValue>::from_raw(&raw).map_err(|reason| ConfigError::BadValue {
                        origin: origin.clone(),
                        key: format!("{}.{}", Section::$section.name(), stringify!($name)),
                        reason,
                    })?;
                    self.origins.insert(stringify!($name), origin);
                } )+)+
                Ok(())
            }

            /// A setting's value in TOML; `None` when it has none.
            #[must_use]
            pub fn toml_value(&self, name: &str) -> Option<String> {
                match name {
                    $($( stringify!($name) => self.$name.to_toml(), )+)+
                    _ => None,
                }
            }
        }
    };
}

settings! { |home|
    Model {
        /// Longest sequence, prompt and answer together; unset: what the model was trained with, or less if memory is short.
        ctx_size: Option<NonZeroUsize> = None, "TOKENS";
        /// Most sequences computed at once.
        max_seqs: NonZeroUsize = count(16), "N";
        /// Most rows (prompt tokens and decoding sequences together) computed in one step.
        max_batched_tokens: NonZeroUsize = count(512), "TOKENS";
        /// Memory for the KV cache, like 512MiB or 2GiB; unset: enough for the sequences, within what is free.
        kv_memory: Option<ByteSize> = None, "SIZE";
        /// How keys and values are stored: f16, f32, or q8_0 (8 bits, and a scale for 32 values).
        kv_type: KvType = KvType::F16, "TYPE";
        /// Threads that compute; unset: one for each core.
        threads: Option<NonZeroUsize> = None, "N";
        /// What computes: cpu, vulkan or vulkan:N (`cuelight devices` lists them), or several with commas, which share the layers in this order.
        device: Devices = ComputeDevice::Cpu.into(), "DEVICE,…";
        /// What each of several devices gets of the layers, like 3,1; unset: by their free memory.
        split: Option<Shares> = None, "N,…";
        /// With one Vulkan device: compute so many layers there, the last ones, and the others on the CPU.
        gpu_layers: Option<usize> = None, "N";
        /// Whose routed experts the CPU computes for a Vulkan device: auto (those that it has no room for), all, or those of so many layers, the first ones.
        cpu_experts: CpuExperts = CpuExperts::Auto, "LAYERS";
        /// Memory that the model may take on a Vulkan device, like 8GiB, as if it had no more; unset: what is free there.
        vram: Option<ByteSize> = None, "SIZE";
        /// Memory of a Vulkan device, like 4GiB, that keeps experts which the CPU has: those that are used often are computed on the device.
        expert_cache: Option<ByteSize> = None, "SIZE";
        /// When the experts that the CPU has all come to the device for a step, through a part of that memory: auto (for prompts of so many tokens that it was measured to be faster), off, or from how many tokens of a step on.
        expert_streaming: ExpertStreaming = ExpertStreaming::Auto, "TOKENS";
        /// Whether the device computes one half of a step while the CPU computes the experts of the other: auto (where that is faster) or off.
        overlap: OverlapMode = OverlapMode::Auto, "WHEN";
        /// On a Vulkan device, a row's bits never depend on its batch (on the CPU they never do); slower with many rows.
        deterministic: bool = false, "";
        /// Instruction set of the kernels: auto, scalar, avx2, avx2-integer, avx-vnni, avx512-vnni or amx-int8.
        kernel: Option<Kernel> = None, "KERNEL";
        /// Bits that integer kernels round the inputs of products to: 15, or 8, which is faster with many rows and less exact.
        activation_bits: ActivationBits = ActivationBits::Fifteen, "BITS";
        /// A file with a chat template (Jinja) to use in place of the model's own.
        chat_template: Option<PathBuf> = None, "FILE";
        /// Measure each op of each step; the file that `trace_file` names shows them inside the steps.
        profile_ops: bool = false, "";
    }
    Server {
        /// Address to listen on; 0.0.0.0 for all interfaces.
        host: String = "127.0.0.1".to_owned(), "ADDRESS";
        /// Port to listen on; 0 picks a free one.
        port: u16 = 8080, "PORT";
        /// Name under which clients ask for the model; unset: the model's own.
        alias: Option<String> = None, "NAME";
        /// How many times each model is loaded, each copy with a scheduler and a KV cache of its own on its share of the devices that `device` names; requests are shared out among them.
        replicas: NonZeroUsize = count(1), "N";
        /// Directory whose GGUF files are models too, each loaded when it is first called.
        models_dir: Option<PathBuf> = None, "DIR";
        /// Memory that all loaded models may take together, like 8GiB; unset: what the machine has free.
        memory: Option<ByteSize> = None, "SIZE";
        /// Most models loaded at once; unset: as many as fit.
        max_loaded_models: Option<NonZeroUsize> = None, "N";
        /// How long a model stays loaded that nobody calls, like 10m, 0 or forever; unset: those on the command line stay, others 5m.
        keep_alive: Option<KeepAlive> = None, "TIME";
        /// Refuse calls to models that are not loaded, in place of loading them.
        no_autoload: bool = false, "";
        /// How long a call may wait for its model to be loaded, like 30s or 5m.
        load_timeout: Duration = Duration::from_secs(300), "TIME";
        /// Key that clients must send; may be given several times.
        api_key: Secrets = Secrets::default(), "KEY";
        /// File with more such keys, one a line.
        api_key_file: Option<PathBuf> = None, "FILE";
        /// Origin that browsers may call from, or *; may be given several times.
        cors_origin: Vec<String> = Vec::new(), "ORIGIN";
        /// Requests that may wait beside those that run; more are refused at once with 429 and Retry-After.
        max_queued_requests: usize = 256, "N";
        /// Prompt tokens that may wait; unset: any number. A request past it is refused as one too many is.
        max_queued_tokens: Option<NonZeroUsize> = None, "TOKENS";
        /// Longest request body, like 16MiB.
        max_body_size: ByteSize = ByteSize(16 << 20), "SIZE";
        /// Milliseconds from one token of a stream to its next that prompts beside it may fill but not exceed; unset: now and then twice what a step takes without them, so that one prompt slows many streams by a seventh, and six or more by half.
        itl_target_ms: Option<NonZeroUsize> = None, "MS";
        /// Most prompt tokens of one request in one step, whatever the time; unset: as many as the time allows.
        prefill_chunk: Option<NonZeroUsize> = None, "TOKENS";
        /// Do not keep the KV blocks of prompts for later requests that begin the same.
        no_prefix_cache: bool = false, "";
        /// Share cached prefixes only between requests of one API key.
        tenant_isolation: bool = false, "";
        /// How long a client may leave its stream unread, once the buffers are full, before it is cut off.
        client_stall_timeout: Duration = Duration::from_secs(30), "TIME";
        /// How long one step may take before the device counts as hung and is restarted.
        step_timeout: Duration = Duration::from_secs(120), "TIME";
        /// Longest time for one request, answer included; unset: no limit.
        request_timeout: Option<Duration> = None, "TIME";
        /// On shutdown, how long running requests may go on, like 30s or 2m.
        drain_timeout: Duration = Duration::from_secs(30), "TIME";
        /// Whose names /metrics uses beside Cuelight's own, for dashboards and autoscalers made for them: none or vllm.
        metrics_compat: Compat = Compat::None, "WHOSE";
        /// File for a timeline of all steps and requests, in Chrome's trace format; unset: none is written.
        trace_file: Option<PathBuf> = None, "FILE";
        /// OpenTelemetry collector that gets a trace of each request, like http://localhost:4318; unset: none.
        otlp_endpoint: Option<String> = None, "URL";
    }
    Sampling {
        /// Sampling temperature; 0 always takes the most likely token.
        temp: Temperature = Temperature(0.7), "T";
        /// Sample among the K most likely tokens; 0: among all.
        top_k: usize = 40, "K";
        /// Sample among the most likely tokens that together reach probability P.
        top_p: Probability = Probability(0.95), "P";
        /// Leave out tokens less likely than P times the most likely one.
        min_p: Probability = Probability(0.05), "P";
        /// Seed of the random choice; the same seed gives the same text.
        seed: Option<u64> = None, "N";
        /// Most tokens to generate for one answer; unset: until the model ends or the context is full.
        max_tokens: Option<NonZeroUsize> = None, "N";
        /// System prompt of the conversation.
        system: Option<String> = None, "TEXT";
    }
    Hub {
        /// Use only what is on this machine already.
        offline: bool = false, "", also &["HF_HUB_OFFLINE"];
        /// Directory of the Hugging Face cache and token, shared with other programs.
        hf_home: PathBuf = home.cache("huggingface"), "DIR", also &["HF_HOME"], has_flag = false;
        /// Base URL of the hub; unset: the public one.
        hf_endpoint: Option<String> = None, "URL", also &["HF_ENDPOINT"], has_flag = false;
        /// Token for gated and private repositories; unset: the one in the Hugging Face home.
        hf_token: Option<Secret> = None, "TOKEN", also &["HF_TOKEN"], has_flag = false;
        /// Directory for what Cuelight itself keeps, like the demo model.
        cache_dir: PathBuf = home.cache("cuelight"), "DIR", has_flag = false;
    }
    Output {
        /// Least important messages to log: error, warn, info, debug or trace; or filters like cuelight=debug.
        log_level: LogLevel = LogLevel::default(), "LEVEL";
        /// How log lines are written: text or json.
        log_format: LogFormat = LogFormat::Text, "FORMAT";
        /// Colours on the terminal: auto, always or never.
        color: Color = Color::Auto, "WHEN", also &["NO_COLOR"];
        /// File for the history of `cuelight run`; an empty name keeps none.
        history_file: PathBuf = home.state("cuelight").join("history"), "FILE", has_flag = false;
    }
}

/// A section's settings as a Markdown table, for `docs/configuration.md`.
#[must_use]
pub fn markdown(section: Section) -> String {
    let defaults = Config::defaults(&Environment::default().home());
    let mut text = "| Key | Variable | Flag | Default | Meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
        let flag = match (setting.has_flag, setting.kind) {
            (false, _) => "-".to_owned(),
            (true, ValueKind::Switch) => format!("`--{}`", setting.flag()),
            (true, _) => format!("`--{} {}`", setting.flag(), setting.value_name),
        };
        let variables = std::iter::once(setting.variable()).chain(setting.also.iter().map(|name| (*name).to_owned()));
        let variables: Vec<String> = variables.map(|name| format!("`{name}`")).collect();
        let default = match defaults.toml_value(setting.name) {
            // Directories depend on the person's home.
            Some(value) if value.contains('/') => "see below".to_owned(),
            Some(value) => format!("`{value}`"),
            None => "unset".to_owned(),
        };
        let (name, doc) = (setting.name, setting.doc.trim());
        text.push_str(&format!("| `{name}` | {} | {flag} | {default} | {doc} |\n", variables.join(", ")));
    }
    text
}

/// A default of the table that is not zero.
const fn count(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

/// A configuration and what the person should hear about it.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// One sentence each.
    pub warnings: Vec<String>,
}

/// Makes the configuration: defaults, then the file, then the environment, then flags.
///
/// `explicit_file` must exist; without it the user's own `cuelight/config.toml` is read if there is one.
///
/// # Errors
/// [`ConfigError`] for an unreadable or wrong file, an unknown key, or a bad value anywhere.
pub fn resolve(
    explicit_file: Option<PathBuf>,
    environment: &Environment,
    flags: Given,
) -> Result<Resolved, ConfigError> {
    let home = environment.home();
    let mut config = Config::defaults(&home);
    let path = explicit_file.or_else(|| {
        let path = home.config("cuelight").join("config.toml");
        path.is_file().then_some(path)
    });
    if let Some(path) = &path {
        config.apply(file::read(path)?)?;
    }
    config.apply(environment.given()?)?;
    config.apply(flags)?;
    Ok(Resolved { config, file: path, warnings: environment.misspelt_variables() })
}

impl Config {
    /// Where a setting's value came from.
    #[must_use]
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// The number of threads to compute with.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(cores, NonZeroUsize::get)
    }

    /// The whole configuration as a TOML file that says where each value came from.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            text.push_str(&format!("[{}]\n", section.name()));
            for setting in SETTINGS.iter().filter(|setting| setting.section == *section) {
                let origin = self.origin(setting.name);
                match self.toml_value(setting.name) {
                    Some(value) => text.push_str(&format!("{} = {value}  # {origin}\n", setting.name)),
                    None => text.push_str(&format!("# {} is not set  # {origin}\n", setting.name)),
                }
            }
            text.push('\n');
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }
}

/// The known name nearest to `wrong`, if one is near.
fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(wrong, name), name))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}
