//! `cuelight bench`: the speed of a model on this machine, in llama-bench's terms; and [`serve`], the speed of a server.
//!
//! `cuelight bench` drives the engine directly, without actors: it measures the engine alone.

mod measure;
mod profile;
mod report;
pub mod serve;

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use cuelight_engine::load::{
    ActivationBits, ComputeDevice, CpuExperts, Devices, ExpertStreaming, Kernel, KvType, LoadOptions, Source,
};
use cuelight_engine::memory::format_bytes;
use cuelight_engine::roofline::{Roofline, Worker};
use cuelight_engine::synthetic::Synthetic;

use self::measure::{Samples, Shape, measure};
use self::profile::Profile;
use self::report::{Format, Measurement, limits_table};
use super::model;
use super::terminal::print;
use super::{CliError, Context, model_help, quantized};
use crate::config::flags::{Flags, HubFlags};
use crate::config::{ByteSize, Given};

/// Measure how fast a model runs on this machine.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
#[command(after_help = "\
Every option accepts a list with commas, and every combination is measured:
  cuelight bench demo                         pp512 and tg128
  cuelight bench demo -p 128,512 -n 0 -t 1,2  prompts of two lengths
  cuelight bench demo -pg 512,128 -d 0,4096   prompt and answer, two depths
  cuelight bench demo -p 0 --parallel 1,4,16  sequences in each step
  cuelight bench demo -r 10 -o json > a.json  output for programs
  cuelight bench demo --roofline --profile    the limits, and each op
  cuelight bench --synthetic qwen3-8b:q8_0    random weights like Qwen3 8B

Each test runs once without timing first. t/s is the mean and the standard deviation of the repetitions. pp is prompt \
processing, tg text generation, and @ d the number of tokens in the cache before timing starts. GB/s counts the weights \
and the KV cache that the steps must at least read, GOPS the model's multiplications and additions. --roofline adds the \
share of the measured limits. Integer kernels compute every product twice unless activations have 8 bits, so they reach \
at most half of their peak.")]
pub struct Args {
    #[command(subcommand)]
    subcommand: Option<BenchCommand>,
    #[arg(value_name = "MODEL", required_unless_present = "synthetic", help = format!("{}; write ./serve for a file named serve", model_help::model()))]
    model: Option<String>,
    /// Instead of MODEL: random weights with the shapes of a known model, generated in memory, like llama-8b:q4_k_m. The
    /// error for an unknown name lists the known ones.
    #[arg(long, value_name = "NAME:FORMAT", conflicts_with = "model")]
    synthetic: Option<Synthetic>,
    /// Write the synthetic model to a GGUF file and measure that file (with -p 0 -n 0: only write it).
    #[arg(long, value_name = "FILE", requires = "synthetic", conflicts_with = "model")]
    write: Option<PathBuf>,
    /// Prompt lengths; 0 for none.
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Tokens to generate; 0 for none.
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// Prompt and generation together (also as -pg; may be repeated).
    #[arg(long = "pg", value_name = "PROMPT,GEN", value_parser = pair)]
    pg: Vec<(usize, usize)>,
    /// Tokens in the cache before each test.
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Sequences computed together in each test; t/s counts all of them.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    parallel: Vec<NonZeroUsize>,
    /// Numbers of threads; default: as configured.
    #[arg(short = 't', long = "threads", id = "thread_counts", value_name = "N,…", value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,
    /// Maximum rows in a step; default: as configured.
    #[arg(short = 'b', long, value_name = "N,…", value_delimiter = ',')]
    batch_size: Vec<NonZeroUsize>,
    /// Storage of keys and values: f16, f32, q8_0; default: as configured.
    #[arg(long = "kv-type", id = "kv_types", value_name = "TYPE,…", value_delimiter = ',')]
    kv_types: Vec<KvType>,
    /// Devices: cpu, vulkan, vulkan:N, or several that share the layers, like vulkan:0+vulkan:1; default: as configured.
    #[arg(long = "device", id = "devices", value_name = "DEVICE,…", value_delimiter = ',')]
    devices: Vec<Devices>,
    /// Instruction sets: scalar, avx2, avx2-integer, avx-vnni, avx512-vnni, amx-int8, neon, neon-integer, neon-dot, neon-i8mm;
    /// default: as configured.
    #[arg(long = "kernel", id = "kernels", value_name = "KERNEL,…", value_delimiter = ',')]
    kernels: Vec<Kernel>,
    /// Bits of activations in integer kernels: 15, 8; default: as configured.
    #[arg(long = "activation-bits", id = "bits_of_activations", value_name = "BITS,…", value_delimiter = ',')]
    activation_bits: Vec<ActivationBits>,
    /// Layers whose routed experts the CPU computes for a Vulkan device: auto, all, or a number; default: as configured.
    /// Device and CPU do not overlap here; `bench serve` measures them with overlap.
    #[arg(long = "cpu-experts", id = "experts_on_cpu", value_name = "LAYERS")]
    cpu_experts: Option<CpuExperts>,
    /// Memory that the model may use on a Vulkan device, like 8GiB; default: as configured.
    #[arg(long = "vram", id = "device_memory", value_name = "SIZE")]
    vram: Option<ByteSize>,
    /// Memory of a Vulkan device that caches often used experts of the CPU, like 4GiB; default: as configured.
    #[arg(long = "expert-cache", id = "expert_cache_memory", value_name = "SIZE")]
    expert_cache: Option<ByteSize>,
    /// Stream the CPU's experts to the device for steps with at least this many tokens, or auto, or off; default: as
    /// configured.
    #[arg(long = "expert-streaming", id = "streaming_of_experts", value_name = "TOKENS")]
    expert_streaming: Option<ExpertStreaming>,
    /// Repetitions of each test.
    #[arg(short = 'r', long, value_name = "N", default_value = "5")]
    repetitions: NonZeroUsize,
    /// Measure the machine's limits first, and show the share that each test reaches.
    #[arg(long)]
    roofline: bool,
    /// Measure each op, and print a table of them below each test.
    #[arg(long)]
    profile: bool,
    /// Output format.
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum, default_value = "md")]
    output: Format,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

/// The subcommands of `cuelight bench`.
#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    Serve(Box<serve::Args>),
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }

    /// The model to measure. Writes a synthetic model first if --write is given.
    fn source(&self, context: &Context) -> Result<Source, CliError> {
        match (&self.synthetic, &self.write) {
            (Some(synthetic), Some(path)) => {
                write(synthetic, path, context)?;
                Ok(Source::File(path.clone()))
            }
            (Some(synthetic), None) => Ok(Source::Synthetic(*synthetic)),
            (None, _) => {
                let model = self.model.as_deref().unwrap_or_default();
                quantized::source(context.locate(model)?, context)
            }
        }
    }

    /// The tests in llama-bench's order: for each depth and number of sequences first prompts, then generation, then both.
    fn shapes(&self) -> Vec<Shape> {
        let at = |depth: usize, parallel: usize| {
            let shape = move |prompt, generated| Shape { prompt, generated, depth, parallel };
            let prompts = self.n_prompt.iter().map(move |&prompt| shape(prompt, 0));
            let generations = self.n_gen.iter().map(move |&generated| shape(0, generated));
            let both = self.pg.iter().map(move |&(prompt, generated)| shape(prompt, generated));
            prompts.chain(generations).chain(both).filter(|shape| shape.timed_tokens() > 0)
        };
        let depths = self.n_depth.iter().copied();
        depths.flat_map(|depth| self.parallel.iter().flat_map(move |count| at(depth, count.get()))).collect()
    }

    /// The engines to measure: all combinations of the lists.
    fn engines(&self, base: &LoadOptions) -> Vec<LoadOptions> {
        let sizes = |counts: &[NonZeroUsize]| counts.iter().map(|count| count.get()).collect::<Vec<_>>();
        let mut engines = vec![LoadOptions {
            cpu_experts: self.cpu_experts.unwrap_or(base.cpu_experts),
            device_bytes: self.vram.map_or(base.device_bytes, |size| Some(size.0)),
            expert_streaming: self.expert_streaming.unwrap_or(base.expert_streaming),
            expert_cache_bytes: self.expert_cache.map_or(base.expert_cache_bytes, |size| Some(size.0)),
            ..base.clone()
        }];
        with_each(&mut engines, &self.devices, |options, device| options.device = device.clone());
        with_each(&mut engines, &self.kernels, |options, kernel| options.kernel = *kernel);
        with_each(&mut engines, &self.activation_bits, |options, bits| options.activation_bits = *bits);
        with_each(&mut engines, &self.kv_types, |options, kv_type| options.kv_type = *kv_type);
        with_each(&mut engines, &sizes(&self.batch_size), |options, rows| options.max_batched_tokens = *rows);
        with_each(&mut engines, &sizes(&self.threads), |options, threads| options.threads = *threads);
        engines
    }
}

/// Replaces each engine by one engine per value; without values the engines stay as they are.
fn with_each<T>(engines: &mut Vec<LoadOptions>, values: &[T], set: impl Fn(&mut LoadOptions, &T)) {
    if values.is_empty() {
        return;
    }
    let with = |options: &LoadOptions, value: &T| {
        let mut options = options.clone();
        set(&mut options, value);
        options
    };
    *engines = engines.iter().flat_map(|options| values.iter().map(|value| with(options, value))).collect();
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once(',').and_then(|(prompt, answer)| Some((prompt.parse().ok()?, answer.parse().ok()?)));
    numbers.ok_or_else(|| {
        "write the prompt length, a comma, and the number of tokens to generate, like 512,128".to_owned()
    })
}

/// Measures, and prints each result as soon as it is known.
///
/// # Errors
/// [`CliError`] when there is nothing to measure, or the model cannot be measured.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    if let Some(BenchCommand::Serve(args)) = &args.subcommand {
        return serve::execute(args, context);
    }
    let shapes = args.shapes();
    if shapes.is_empty() && args.write.is_none() {
        return Err(CliError::Usage("nothing to measure: -p and -n are 0 and -pg is not given".to_owned()));
    }
    let source = args.source(context)?;
    let Some(context_tokens) = shapes.iter().map(Shape::context_tokens).max() else {
        return Ok(());
    };
    let configured = model::load_options(&context.config, context.tuned(), source)?;
    let max_sequences = shapes.iter().map(|shape| shape.parallel).max().unwrap_or(1);
    let profile_ops = args.profile;
    let base =
        LoadOptions { context_tokens: Some(context_tokens), max_sequences, kv_bytes: None, profile_ops, ..configured };
    let engines = args.engines(&base);
    let rooflines = if args.roofline { measure_machine(&engines, args.output)? } else { Vec::new() };
    print(args.output.head(args.profile))?;
    let mut index = 0;
    for options in engines {
        let worker = worker(&options);
        let is_its = |roofline: &&Roofline| Some(roofline.worker) == worker;
        let roofline = rooflines.iter().find(is_its).copied();
        for measurement in measure_engine(&options, &shapes, args.repetitions.get(), roofline) {
            print(&args.output.result(index, &measurement?))?;
            index += 1;
        }
    }
    print(args.output.tail())
}

/// Writes a synthetic model to a new file.
fn write(synthetic: &Synthetic, path: &Path, context: &Context) -> Result<(), CliError> {
    let bar = context.terminal.bytes_bar("writing", 0);
    let written = synthetic.write(path, &mut |progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    });
    bar.finish_and_clear();
    let bytes = written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::Failed(format!(
            "{} already exists; measure it without --synthetic, remove it, or write to another file",
            path.display()
        )),
        _ => CliError::io(format!("write {}", path.display()))(source),
    })?;
    context.terminal.notice(&format!("wrote {} ({})", path.display(), format_bytes(bytes)));
    Ok(())
}

/// The device that does all of an engine's work; `None` where several devices share it.
fn worker(options: &LoadOptions) -> Option<Worker> {
    match (&options.device.0[..], options.gpu_layers) {
        ([ComputeDevice::Cpu], None) => Some(Worker::Cpu(options.kernel, options.threads)),
        ([ComputeDevice::Vulkan(index)], None) => Some(Worker::Vulkan(*index)),
        _ => None,
    }
}

/// Measures the limits of each engine's device, and those of one CPU thread. Prints them with Markdown output.
fn measure_machine(engines: &[LoadOptions], output: Format) -> Result<Vec<Roofline>, CliError> {
    let mut all = Vec::new();
    let mut report = |rooflines: Vec<Roofline>| {
        if output == Format::Md {
            print(&limits_table(&rooflines))?;
        }
        all.extend(rooflines);
        Ok::<(), CliError>(())
    };
    let workers: Vec<Worker> = engines.iter().filter_map(worker).collect();
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let threads = workers.iter().filter_map(|worker| match worker {
            Worker::Cpu(its, threads) if *its == kernel => Some(*threads),
            _ => None,
        });
        let threads: BTreeSet<usize> = threads.flat_map(|threads| [1, threads]).collect();
        if !threads.is_empty() {
            report(threads.into_iter().map(|threads| Roofline::measure(kernel, threads)).collect())?;
        }
    }
    let devices: BTreeSet<usize> = workers
        .iter()
        .filter_map(|worker| if let Worker::Vulkan(index) = worker { Some(*index) } else { None })
        .collect();
    for device in devices {
        report(vec![Roofline::measure_vulkan(device).map_err(CliError::other)?])?;
    }
    Ok(all)
}

/// Builds an engine and measures the shapes on it, one per item of the iterator.
fn measure_engine<'a>(
    options: &'a LoadOptions,
    shapes: &'a [Shape],
    repetitions: usize,
    roofline: Option<Roofline>,
) -> Box<dyn Iterator<Item = Result<Measurement, CliError>> + 'a> {
    let plan = match model::plan_for_tokens(options, "bench") {
        Ok(plan) => plan,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    let path = plan.path().display().to_string();
    let (card, device) = (plan.card().clone(), plan.limits().device.clone());
    let mut engine = match plan.load_engine(&mut |_| {}) {
        Ok(engine) => engine,
        Err(error) => return Box::new(std::iter::once(Err(CliError::other(error)))),
    };
    Box::new(shapes.iter().map(move |&shape| {
        let started = jiff::Timestamp::now().to_string();
        let Samples { times, cost, ops } = measure(&mut engine, shape, repetitions).map_err(CliError::other)?;
        let profile = options.profile_ops.then(|| Profile::new(&ops, times.iter().sum(), roofline.as_ref()));
        Ok(Measurement {
            path: path.clone(),
            card: card.clone(),
            device: device.clone(),
            threads: options.threads,
            batch: options.max_batched_tokens,
            kv_type: options.kv_type.name(),
            shape,
            started,
            samples: times,
            cost,
            roofline,
            profile,
        })
    }))
}
