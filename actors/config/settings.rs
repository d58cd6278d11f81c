//! The table of all settings, and the [`Config`] that it declares.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use cuelight_engine::load::{
    ActivationBits, ComputeDevice, CpuExperts, Devices, ExpertStreaming, Kernel, KvType, Shares,
};
use cuelight_engine::quantize::Target;

use super::address::{CollectorUrl, EventsAddress, HttpUrl, PageOrigin};
use super::error::{ConfigError, Given, Origin};
use super::home::Home;
use super::value::{
    ByteSize, CalibrateMode, Color, LogFormat, LogLevel, Probability, Raw, Secret, Secrets, SettingValue, Temperature,
    ValueKind,
};
use crate::api::{ClientIdentity, ConnectionOptions, ServerOptions};
use crate::kv_events::EventFormat;
use crate::metrics::exposition::Compat;
use crate::models::{KeepAlive, ModelsOptions};
use crate::pipeline::executor::OverlapMode;
use crate::pipeline::policy::SpeculationMode;
use crate::pipeline::runtime::RuntimeOptions;
use crate::serving::media_limits::MediaLimits;

/// The prefix of Cuelight's own environment variables.
pub const PREFIX: &str = "CUELIGHT_";

/// A group of settings: a table of the configuration file and a heading of `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// How a model is loaded.
    Model,
    /// How requests are scheduled and served over HTTP.
    Server,
    /// How tokens are chosen where a request or a chat does not say it.
    Sampling,
    /// The tools that the model of a chat may call.
    Tools,
    /// Where models come from and where they are stored.
    Hub,
    /// What is written to the terminal and to the log.
    Output,
}

impl Section {
    /// In the order they are shown.
    pub const ALL: &[Section] =
        &[Section::Model, Section::Server, Section::Sampling, Section::Tools, Section::Hub, Section::Output];

    /// The table's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Section::Model => "model",
            Section::Server => "server",
            Section::Sampling => "sampling",
            Section::Tools => "tools",
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
            Section::Tools => "Tools",
            Section::Hub => "Where models come from",
            Section::Output => "Output",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Its group.
    pub section: Section,
    /// Its key in the file; with dashes its flag.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub doc: &'static str,
    /// The name of its value in help: "TOKENS".
    pub value_name: &'static str,
    /// Environment variables of other programs that also set it; `CUELIGHT_…` takes precedence.
    pub also: &'static [&'static str],
    /// Whether it has a flag. A secret has none, because every user of the machine can read command lines.
    pub has_flag: bool,
    /// Whether only experts need it: `--help` lists it under "Advanced", and `-h` leaves it out.
    pub is_advanced: bool,
    /// Whether it is a switch, one value or several.
    pub kind: ValueKind,
    /// Whether its value is never shown.
    pub is_secret: bool,
    /// Checks a value; the error says what is wrong with it.
    pub(super) check: fn(&Raw) -> Result<(), String>,
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
        format!("{}{}", PREFIX, self.name.to_uppercase())
    }

    /// Its flag without the leading dashes: "max-seqs".
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// Declares [`SETTINGS`] and [`Config`] from one row for each setting: documentation, name, type, default, name of the
/// value in help, variables of other programs, whether it has a flag, and whether it is advanced.
macro_rules! settings {
    (|$home:ident| $($section:ident {
        $( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $value_name:literal
            $(, also $also:expr)? $(, has_flag = $has_flag:literal)? $(, advanced = $advanced:literal)?; )+
    })+) => {
        /// The table of all settings.
        pub const SETTINGS: &[Setting] = &[$($( Setting {
            section: Section::$section,
            name: stringify!($name),
            doc: concat!($($doc),+),
            value_name: $value_name,
            also: { #[allow(unused_mut, unused_assignments)] { let mut also: &[&str] = &[]; $( also = $also; )? also } },
            has_flag: true $( && $has_flag )?,
            is_advanced: false $( || $advanced )?,
            kind: <$type as SettingValue>::KIND,
            is_secret: <$type as SettingValue>::IS_SECRET,
            check: |raw| <$type as SettingValue>::from_raw(raw).map(drop),
        } ),+),+];

        /// The values of all settings.
        #[derive(Debug, Clone)]
        pub struct Config {
            $($( $(#[doc = $doc])+ pub $name: $type, )+)+
            origins: BTreeMap<&'static str, Origin>,
        }

        impl Config {
            /// The defaults.
            #[must_use]
            pub fn defaults($home: &Home) -> Self {
                Config { $($( $name: $default, )+)+ origins: BTreeMap::new() }
            }

            /// Replaces settings by the given values.
            pub(super) fn apply(&mut self, mut given: Given) -> Result<(), ConfigError> {
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

            /// A setting's value in TOML, "(hidden)" for a secret; `None` when it has none.
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
        /// Longest conversation in tokens, prompt and answer together; if not set, the model's own limit, or less when memory is short.
        ctx_size: Option<NonZeroUsize> = None, "TOKENS";
        /// How many requests are computed at the same time.
        max_seqs: NonZeroUsize = count(16), "N";
        /// Most tokens computed in one step, prompt tokens and decoding requests together.
        max_batched_tokens: NonZeroUsize = count(512), "TOKENS", advanced = true;
        /// Memory for the KV cache (the keys and values of all tokens so far), like 2GiB; if not set, enough for one whole context and up to 1024 tokens of each further request, as far as memory is free.
        kv_memory: Option<ByteSize> = None, "SIZE";
        /// Host memory, like 8GiB, for copies of KV cache blocks that the KV cache has no room for, of each model; a later prompt with the same beginning loads them instead of computing them again; if not set, none.
        kv_host_memory: Option<ByteSize> = None, "SIZE";
        /// Directory for copies of KV cache blocks that fit neither the KV cache nor `kv_host_memory`; a restarted server finds them again; if not set, none.
        kv_disk: Option<PathBuf> = None, "DIR";
        /// Most space in `kv_disk` for the blocks of one model, like 100GiB.
        kv_disk_size: ByteSize = ByteSize(16 << 30), "SIZE";
        /// This server's address as other servers reach it, like 10.0.0.7:8080, by which they load the KV cache blocks of prompts that a router had computed here; needs `kv_host_memory`; if not set, they load none.
        kv_share: Option<String> = None, "HOST:PORT";
        /// Server, as a host name, an IP address, a network like 10.0.0.0/8, or * for all, and a port if only one is allowed, from which KV cache blocks may be loaded when a request names it; repeat the flag for several.
        kv_peer: Vec<String> = Vec::new(), "SERVER";
        /// Key that the servers in `kv_peer` require, one of their `api_key`; blocks that another server sends are refused.
        kv_peer_key: Option<Secret> = None, "KEY", advanced = true;
        /// Memory for the recurrent state of conversations, for models such as Qwen 3.5 that have it; if not set, enough for all requests that are computed at the same time and some checkpoints, as far as memory is free.
        state_memory: Option<ByteSize> = None, "SIZE", advanced = true;
        /// Number format of the KV cache: f16, f32, or q8_0 (8 bits per number, about half the size of f16).
        kv_type: KvType = KvType::F16, "TYPE";
        /// Keep all tokens also in layers that attend only to the last ones (a sliding window); takes more memory, and finds more beginnings of prompts in the KV cache; always so with `kv_host_memory`, `kv_disk`, `kv_share` or `kv_peer`.
        kv_full: bool = false, "", advanced = true;
        /// Format to quantize the weights to before the model is loaded, such as q8_0 or q4_k_m, for models in BF16, F16 or F32; the copy is kept in `cache_dir`.
        quantize: Option<Target> = None, "FORMAT";
        /// CPU threads to compute with; if not set, all that the process may use, or half of them where more are not faster.
        threads: Option<NonZeroUsize> = None, "N";
        /// Device to compute on: cpu, vulkan, or vulkan:N as listed by `cuelight devices`; several, separated by commas, divide the layers in that order.
        device: Devices = ComputeDevice::Cpu.into(), "DEVICE,…";
        /// Proportions in which several devices divide the layers, like 3,1; if not set, by their free memory.
        split: Option<Shares> = None, "N,…", advanced = true;
        /// How many layers one Vulkan device computes, counted from the last; the CPU computes the others.
        gpu_layers: Option<usize> = None, "N";
        /// Layers of a mixture-of-experts model whose experts the CPU computes for a Vulkan device: auto (those that do not fit on the device), all, or a number of layers, counted from the first.
        cpu_experts: CpuExperts = CpuExperts::Auto, "LAYERS";
        /// Most memory to use on a Vulkan device, like 8GiB; if not set, all that is free there.
        vram: Option<ByteSize> = None, "SIZE";
        /// Memory on a Vulkan device, like 4GiB, for copies of the most used experts that the CPU would compute otherwise; if not set, none.
        expert_cache: Option<ByteSize> = None, "SIZE", advanced = true;
        /// From how many tokens in a step on all experts of the CPU are uploaded and computed on the device, through `expert_cache`: auto (from where that is measured to be faster), off, or a number.
        expert_streaming: ExpertStreaming = ExpertStreaming::Auto, "TOKENS", advanced = true;
        /// Compute one half of a step on the device while the CPU computes the experts of the other half: auto (where that is faster) or off.
        overlap: OverlapMode = OverlapMode::Auto, "WHEN", advanced = true;
        /// Make each result on a Vulkan device independent of the other requests in its batch, as results on the CPU always are; slower with many requests.
        deterministic: bool = false, "", advanced = true;
        /// CPU instruction set to use: auto, scalar, avx2, avx2-integer, avx-vnni, avx512-vnni, amx-int8, neon, neon-integer, neon-dot or neon-i8mm.
        kernel: Option<Kernel> = None, "KERNEL", advanced = true;
        /// When to measure which settings of the CPU kernels are fastest on this CPU, which takes half a second: auto (at the first start; the result is kept in `cache_dir`) or off.
        calibrate: CalibrateMode = CalibrateMode::Auto, "WHEN", advanced = true;
        /// Bits to which integer kernels round the inputs of matrix products: 15, or 8, which is faster with many rows and less exact.
        activation_bits: ActivationBits = ActivationBits::Fifteen, "BITS", advanced = true;
        /// Low-rank adapter of the model, a GGUF file or a PEFT directory, as NAME=PATH or NAME=PATH:SCALE; requests choose it by NAME; repeat the flag for several adapters.
        lora: Vec<String> = Vec::new(), "NAME=PATH";
        /// How many adapters may be in memory at the same time; if not set, those of `lora`, or 8 where clients may load adapters.
        lora_slots: Option<NonZeroUsize> = None, "N", advanced = true;
        /// Largest rank of an adapter, for which memory is reserved; if not set, the largest rank among the adapters of `lora`, and at least 64 where clients may load adapters.
        lora_max_rank: Option<NonZeroUsize> = None, "N", advanced = true;
        /// Reserve memory for adapters that change the token embedding or the output head; not needed if an adapter of `lora` changes them.
        lora_vocabulary: bool = false, "", advanced = true;
        /// Reserve memory for adapters that change routed experts; not needed if an adapter of `lora` changes them.
        lora_experts: bool = false, "", advanced = true;
        /// Small model with the same vocabulary, or EAGLE-3 model made for this one, that drafts tokens, which the model then verifies several at a time, or mtp for the model's own layer for multi-token prediction; the text is the same.
        draft: Option<String> = None, "MODEL";
        /// Device to compute the draft model on; if not set, the first one of `device`.
        draft_device: Option<ComputeDevice> = None, "DEVICE", advanced = true;
        /// Memory for the KV cache of the draft model, like 1GiB.
        draft_kv_memory: ByteSize = ByteSize(256 << 20), "SIZE", advanced = true;
        /// Projector file of the model (mmproj), a GGUF file or a Hugging Face directory, with which it takes images or audio; if not set, the one next to the model's file.
        mmproj: Option<PathBuf> = None, "FILE";
        /// Load the model without a projector file, so that it takes neither images nor audio.
        no_mmproj: bool = false, "";
        /// Memory for the embeddings of images and audio that were sent before, like 256MiB, so that the next turn of a conversation does not compute them again; 0 keeps none.
        media_cache: ByteSize = ByteSize(RuntimeOptions::MEDIA_CACHE_BYTES as u64), "SIZE", advanced = true;
        /// File with a chat template (Jinja) that replaces the model's own.
        chat_template: Option<PathBuf> = None, "FILE";
        /// Longest time that the chat template may take to compile, or to render one conversation.
        chat_template_timeout: Duration = Duration::from_secs(5), "TIME", advanced = true;
        /// Most memory that a process which renders chat templates may use, like 256MiB.
        chat_template_memory: ByteSize = ByteSize(256 << 20), "SIZE", advanced = true;
        /// Let spellings of control tokens in the messages of users and tools become control tokens; by default they stay text.
        parse_special_in_content: bool = false, "", advanced = true;
        /// Ignore the sampling that the model recommends in `generation_config.json` or in the keys of its GGUF file; otherwise it applies where a request and the settings say nothing.
        no_model_sampling: bool = false, "";
        /// Measure every operation of every step and add the times to the timeline of `trace_file`.
        profile_ops: bool = false, "", advanced = true;
    }
    Server {
        /// Address to listen on; 0.0.0.0 listens on all network interfaces.
        host: String = "127.0.0.1".to_owned(), "ADDRESS";
        /// Port to listen on; 0 picks a free one.
        port: u16 = 8080, "PORT";
        /// Name that clients use for the model; if not set, the model's own name.
        alias: Option<String> = None, "NAME";
        /// Answer requests that name an unknown model with the default model, as llama-server does, instead of 404.
        any_model_name: bool = false, "";
        /// How many copies of each model to load, each with its own scheduler, KV cache and share of the devices; requests are distributed among them.
        replicas: NonZeroUsize = count(1), "N", advanced = true;
        /// Directory of GGUF files and Hugging Face directories to serve, each loaded by the first request for it.
        models_dir: Option<PathBuf> = None, "DIR";
        /// Let clients download models into the directory of models, and delete them, with Ollama's pull and delete.
        allow_pull: bool = false, "";
        /// Let clients load and unload adapters of the model, from any path that the server can read.
        allow_lora_loading: bool = false, "";
        /// Most memory that all loaded models may use together, like 8GiB; if not set, what the machine has free.
        memory: Option<ByteSize> = None, "SIZE";
        /// Most models loaded at the same time; if not set, as many as fit.
        max_loaded_models: Option<NonZeroUsize> = None, "N";
        /// How long a model without requests stays loaded, like 10m, 0 or forever; if not set, models of the command line stay loaded, and others are unloaded after 5m.
        keep_alive: Option<KeepAlive> = None, "TIME";
        /// Refuse requests for models that are not loaded, instead of loading them.
        no_autoload: bool = false, "";
        /// Longest time that a request waits for its model to be loaded, like 30s or 5m.
        load_timeout: Duration = ModelsOptions::default().load_timeout, "TIME", advanced = true;
        /// Key that clients must send; repeat the flag for several keys.
        api_key: Secrets = Secrets::default(), "KEY";
        /// File with more such keys, one per line.
        api_key_file: Option<PathBuf> = None, "FILE";
        /// Origin (scheme, host and port) whose web pages may use this server, or * for all; repeat the flag for several origins.
        cors_origin: Vec<PageOrigin> = Vec::new(), "ORIGIN";
        /// Host name, other than localhost, by which clients may address a server that listens on a loopback address, or * for all; repeat the flag for several names.
        allowed_host: Vec<String> = Vec::new(), "NAME", advanced = true;
        /// Answer browsers at / with plain text instead of a chat page.
        no_chat_page: bool = false, "";
        /// How many requests may wait; further requests are refused with status 429 and a Retry-After header.
        max_queued_requests: usize = ModelsOptions::default().max_waiting_calls, "N";
        /// How many prompt tokens may wait; further requests are refused with status 429; if not set, any number.
        max_queued_tokens: Option<NonZeroUsize> = None, "TOKENS", advanced = true;
        /// Largest request body that is accepted, like 32MiB, counted after decompression.
        max_body_size: ByteSize = ByteSize(ServerOptions::MAX_BODY_BYTES as u64), "SIZE", advanced = true;
        /// Memory for the bodies of all requests together, like 1GiB, until their prompts are read; further requests are refused with status 429; if not set, 512MiB, or a sixteenth of the memory if that is less.
        request_memory: Option<ByteSize> = None, "SIZE", advanced = true;
        /// Most images of a request.
        max_images: NonZeroUsize = count(MediaLimits::IMAGES), "N", advanced = true;
        /// Largest file of an image that is accepted, like 20MiB.
        max_image_size: ByteSize = ByteSize(MediaLimits::IMAGE_BYTES as u64), "SIZE", advanced = true;
        /// Most pixels of an image, width times height, which limits the memory that a small file can need.
        max_image_pixels: NonZeroUsize = count(MediaLimits::IMAGE_PIXELS), "N", advanced = true;
        /// Most audio clips of a request.
        max_audio: NonZeroUsize = count(MediaLimits::AUDIO), "N", advanced = true;
        /// Largest file of an audio clip that is accepted, like 25MiB.
        max_audio_size: ByteSize = ByteSize(MediaLimits::AUDIO_BYTES as u64), "SIZE", advanced = true;
        /// Most seconds of an audio clip, which limits the memory that a small file can need.
        max_audio_seconds: NonZeroUsize = count(MediaLimits::AUDIO_SECONDS), "N", advanced = true;
        /// Host from which images and audio may be loaded when a request has their URLs, and a port unless it is the usual one, like images.example.org or 10.0.0.7:8080, or * for all; repeat the flag for several; if not set, they must be in the request.
        media_host: Vec<String> = Vec::new(), "HOST[:PORT]";
        /// Memory for the responses of the Responses API that are kept for later requests, like 256MiB, or 0 to keep none; if not set, 64MiB, or a 128th of the memory if that is less.
        response_store: Option<ByteSize> = None, "SIZE", advanced = true;
        /// Directory for the files and batches that clients send to be answered while the server has time; if not set, none are accepted.
        batches: Option<PathBuf> = None, "DIR";
        /// Most space in `batches` for the files of all clients, like 100GiB.
        batches_disk: ByteSize = ByteSize(4 << 30), "SIZE", advanced = true;
        /// Most connections of clients at the same time; if not set, as many as the limit on open files allows.
        max_connections: Option<NonZeroUsize> = None, "N", advanced = true;
        /// How long a client may take to send the headers of a request.
        header_timeout: Duration = ConnectionOptions::default().header_timeout, "TIME", advanced = true;
        /// How long a client may pause while it sends the body of a request.
        body_timeout: Duration = ServerOptions::BODY_TIMEOUT, "TIME", advanced = true;
        /// How long a connection without a request stays open.
        idle_timeout: Duration = ConnectionOptions::default().idle_timeout, "TIME", advanced = true;
        /// Which requests share the server as one client: key (those with the same API key, or from the same address) or user (also the same `user` field, if you trust the callers with it).
        client_identity: ClientIdentity = ClientIdentity::Key, "WHAT", advanced = true;
        /// Most urgent `priority` that a request may have; lower numbers are more urgent, and a lower number is replaced by this one.
        highest_priority: i32 = 0, "N", advanced = true;
        /// Longest pause in milliseconds between two tokens of an answer that the processing of other prompts may cause; if not set, some pauses are up to twice as long as without prompts.
        itl_target_ms: Option<NonZeroUsize> = None, "MS", advanced = true;
        /// Most prompt tokens of one request in one step; if not set, as many as the time for a step allows.
        prefill_chunk: Option<NonZeroUsize> = None, "TOKENS", advanced = true;
        /// Compute several tokens of an answer in one step where they can be guessed: auto (where this was measured to be faster), ngram (always where they repeat earlier text), draft (always, with the guesses of the draft model too) or off; the text is the same.
        speculate: SpeculationMode = SpeculationMode::Auto, "WHEN";
        /// Compute every prompt in full, instead of reusing the KV cache of earlier prompts that start the same.
        no_prefix_cache: bool = false, "", advanced = true;
        /// Reuse the KV cache of earlier prompts only among requests with the same API key.
        tenant_isolation: bool = false, "", advanced = true;
        /// How long a client may stop reading its stream, once the buffers are full, before its request is cancelled.
        client_stall_timeout: Duration = RuntimeOptions::default().client_stall_timeout, "TIME", advanced = true;
        /// How long one step may take before its device is considered hung and is restarted.
        step_timeout: Duration = RuntimeOptions::default().step_timeout, "TIME", advanced = true;
        /// Longest time for one request, from its arrival to the end of its answer; if not set, no limit.
        request_timeout: Option<Duration> = None, "TIME";
        /// How long requests in flight may continue after the server is told to stop, like 30s or 2m.
        drain_timeout: Duration = ServerOptions::DRAIN_TIMEOUT, "TIME";
        /// Server whose metric names are published as well, for its dashboards and autoscalers: none or vllm.
        metrics_compat: Compat = Compat::None, "SERVER", advanced = true;
        /// Address, like tcp://*:5557, on which routers are told over ZeroMQ which prompts the KV cache holds; if not set, none are told.
        kv_events: Option<EventsAddress> = None, "ADDRESS";
        /// Address, like tcp://*:5558, on which a router can ask for the messages of `kv_events` that it has missed.
        kv_events_replay: Option<EventsAddress> = None, "ADDRESS", advanced = true;
        /// Topic of the messages of `kv_events`; {host} stands for the name of this machine, and {model} for that of the model.
        kv_events_topic: String = "kv@{host}@{model}".to_owned(), "TOPIC", advanced = true;
        /// How the messages of `kv_events` are encoded: map, for Dynamo and vllm-router, or array, for llm-d.
        kv_events_format: EventFormat = EventFormat::Map, "FORMAT", advanced = true;
        /// File for a timeline of all steps and requests, in Chrome's trace format; if not set, none is written.
        trace_file: Option<PathBuf> = None, "FILE", advanced = true;
        /// Directory for a recording of all requests, which `cuelight replay` repeats; if not set, none is written.
        record: Option<PathBuf> = None, "DIR", advanced = true;
        /// Record the texts of prompts and answers too, so that a replay can compare the answers.
        record_texts: bool = false, "", advanced = true;
        /// OpenTelemetry collector that receives a trace of each request, like http://localhost:4318; if not set, none.
        otlp_endpoint: Option<CollectorUrl> = None, "URL", advanced = true;
    }
    Sampling {
        /// Randomness of the answers; 0 always picks the most likely token.
        temp: Temperature = Temperature(0.7), "T";
        /// Pick among the K most likely tokens only; 0 turns this off.
        top_k: usize = 40, "K";
        /// Pick among the most likely tokens whose probabilities add up to P; 1 turns this off.
        top_p: Probability = Probability(0.95), "P";
        /// Skip tokens that are less likely than P times the most likely one; 0 turns this off.
        min_p: Probability = Probability(0.05), "P";
        /// Seed of the random choice in `cuelight run`; the same seed gives the same answer.
        seed: Option<u64> = None, "N";
        /// Longest answer of `cuelight run` in tokens; if not set, until the model ends it or the context is full.
        max_tokens: Option<NonZeroUsize> = None, "N";
        /// System prompt: instructions that the model reads before the conversation.
        system: Option<String> = None, "TEXT";
    }
    Tools {
        /// File that names MCP servers, whose tools the model of `cuelight run` may call, in the form of Claude Desktop, Cursor and VS Code; if not set, it may call none.
        mcp: Option<PathBuf> = None, "FILE";
        /// Tool that runs without asking, as SERVER.TOOL, SERVER.* for all tools of a server, or * for all; repeat the flag for several.
        allow_tool: Vec<String> = Vec::new(), "TOOL";
        /// Longest time that one call of a tool may take.
        tool_timeout: Duration = Duration::from_secs(120), "TIME";
    }
    Hub {
        /// Use only models that are already on this machine.
        offline: bool = false, "", also &["HF_HUB_OFFLINE"];
        /// Directory of the Hugging Face cache and token, shared with other programs.
        hf_home: PathBuf = home.cache("huggingface"), "DIR", also &["HF_HOME"], has_flag = false;
        /// Base URL of the hub; if not set, the public one.
        hf_endpoint: Option<HttpUrl> = None, "URL", also &["HF_ENDPOINT"], has_flag = false;
        /// Token for gated and private repositories; if not set, the one in the Hugging Face home.
        hf_token: Option<Secret> = None, "TOKEN", also &["HF_TOKEN"], has_flag = false;
        /// Base URL of a registry with Ollama's protocol, for models named ollama://NAME:TAG; if not set, they name their registry.
        ollama_registry: Option<String> = None, "URL", has_flag = false;
        /// Directory of models from Ollama's registries, in Ollama's layout; if not set, `ollama` in the cache directory.
        ollama_models: Option<PathBuf> = None, "DIR", also &["OLLAMA_MODELS"], has_flag = false;
        /// Directory for Cuelight's own files, like the demo model.
        cache_dir: PathBuf = home.cache("cuelight"), "DIR", has_flag = false;
    }
    Output {
        /// Least severe messages to log: error, warn, info, debug, trace or off; or filters like cuelight=debug; without this setting, commands other than `serve` log warnings and errors only.
        log_level: LogLevel = LogLevel::default(), "LEVEL";
        /// Format of log lines: text or json.
        log_format: LogFormat = LogFormat::Text, "FORMAT";
        /// When to use colours on the terminal: auto, always or never.
        color: Color = Color::Auto, "WHEN", also &["NO_COLOR", "TERM"];
        /// File for the input history of `cuelight run`; an empty name turns the history off.
        history_file: PathBuf = home.state("cuelight").join("history"), "FILE", has_flag = false;
    }
}

/// A default that is not zero.
const fn count(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
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
        self.threads.map_or_else(cuelight_engine::backend::cpu::default_threads, NonZeroUsize::get)
    }

    /// The whole configuration as a TOML file, with the origin of each value as a comment. Defaults are comments, so that the
    /// file sets only what was set. So are secrets, whose values are not shown.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            text.push_str(&format!("[{}]\n", section.name()));
            for setting in SETTINGS.iter().filter(|setting| setting.section == *section) {
                text.push_str(&self.toml_line(setting));
            }
            text.push('\n');
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    /// A setting's line of [`Config::to_toml`].
    fn toml_line(&self, setting: &Setting) -> String {
        let (name, origin) = (setting.name, self.origin(setting.name));
        match self.toml_value(name) {
            Some(_) if setting.is_secret && *origin != Origin::Default => {
                format!("# {name} is set; its value is not shown  # {origin}\n")
            }
            Some(value) if *origin == Origin::Default => format!("# {name} = {value}  # {origin}\n"),
            Some(value) => format!("{name} = {value}  # {origin}\n"),
            None => format!("# {name} is not set  # {origin}\n"),
        }
    }
}
