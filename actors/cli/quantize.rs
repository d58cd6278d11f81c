//! `cuelight quantize`: writes a model with fewer bits. `cuelight convert` writes it as it is, in the same way.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuelight_engine::cancel::LoadCancel;
use cuelight_engine::checkpoint;
use cuelight_engine::quantize::{ImportanceMatrix, Override, QuantizeError, QuantizeOptions, QuantizePlan, Target};

use super::terminal::{Align, markdown, print};
use super::tuning::Tuned;
use super::{CliError, Context, async_runtime};
use crate::config::flags::{Flags, HubFlags};
use crate::config::{ByteSize, Config, Given};

/// Write a copy of a model with fewer bits per weight.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight quantize ./model-f16.gguf ./model-q4_k_m.gguf q4_k_m
  cuelight quantize ./Qwen3-8B ./qwen3-8b.gguf q4_k_m       from a directory
  cuelight quantize ./f16.gguf ./small.gguf iq2_xxs --imatrix ./i.gguf
  cuelight quantize ./f16.gguf ./mixed.gguf q4_k_m --tensor-type attn_v=q8_0
  cuelight quantize ./f16.gguf ./out.gguf q4_k_m --dry-run  show formats

FORMAT is f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, q3_k_l, q3_k_m, \
q3_k_s, q2_k, mxfp4_moe, iq3_m, iq3_s, iq3_xs, iq3_xxs, iq2_m, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s, nvfp4, tq1_0, tq2_0, q2_0 or q1_0. \
Mixtures are those of llama.cpp: some tensors get more bits than others. From iq3_xs down (by size), the iq formats need --imatrix.")]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    /// The format to write.
    #[arg(value_name = "FORMAT")]
    format: Target,
    /// File with the importance of each column, as `llama-imatrix` writes it.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Format for the tensors whose names match a regular expression; may be given several times, and the first match counts.
    #[arg(long = "tensor-type", value_name = "PATTERN=FORMAT", value_parser = parse_override)]
    overrides: Vec<Override>,
    /// Quantize tensors that are quantized already, at a loss of precision.
    #[arg(long)]
    allow_requantize: bool,
}

/// What is read, and how the new file is written.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// The model to read.
    #[arg(value_name = "MODEL")]
    model: String,
    /// The file to write.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Show the format of each tensor and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Replace the file OUT if it exists.
    #[arg(long)]
    force: bool,
    /// Number of threads; default: as configured.
    #[arg(short = 't', long = "threads", id = "thread_count", value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

fn parse_override(text: &str) -> Result<Override, String> {
    text.parse().map_err(|error: QuantizeError| error.to_string())
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.output.given()
    }
}

impl OutputArgs {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }
}

pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let importance = args.imatrix.as_deref().map(ImportanceMatrix::open).transpose().map_err(CliError::other)?;
    let options = QuantizeOptions {
        target: Some(args.format),
        overrides: args.overrides.clone(),
        importance,
        allow_requantize: args.allow_requantize,
        ..QuantizeOptions::default()
    };
    write_copy(&args.output, options, context)
}

/// Writes a complete copy of a model as a GGUF file, and prints what was written.
///
/// # Errors
/// [`CliError`] when the model cannot be opened or quantized, or the file exists or cannot be written.
pub(super) fn write_copy(args: &OutputArgs, options: QuantizeOptions, context: &Context) -> Result<(), CliError> {
    if !args.dry_run && !args.force && args.out.exists() {
        return Err(CliError::Failed(format!(
            "{} exists; give another name, or --force to replace it",
            args.out.display()
        )));
    }
    let path = context.locate(&args.model)?;
    if is_same_file(&path, &args.out) {
        return Err(CliError::Failed(format!(
            "{} is the model itself; give another name for the output",
            args.out.display()
        )));
    }
    let threads = args.threads.map_or_else(|| threads(&context.config), NonZeroUsize::get);
    let options = QuantizeOptions { is_complete: true, threads, ..options };
    let checkpoint = checkpoint::open(&path).map_err(CliError::other)?;
    let plan = QuantizePlan::new(&*checkpoint, &options).map_err(refused("give --allow-requantize"))?;
    if args.dry_run {
        return print(&table(&plan));
    }
    let start = Instant::now();
    match write(&plan, &args.out, context)? {
        Some(bytes) => print(&summary(&plan, &args.out, bytes, start.elapsed())),
        None => Err(CliError::Failed(format!("{}: another process is writing this file", args.out.display()))),
    }
}

/// For `map_err` on a plan; `remedy` is how to go on with a model that is quantized already.
pub(super) fn refused(remedy: &'static str) -> impl FnOnce(QuantizeError) -> CliError {
    move |error| match error {
        QuantizeError::AlreadyQuantized { .. } => CliError::Failed(format!("{error}, or {remedy}")),
        error => CliError::other(error),
    }
}

pub(super) fn threads(config: &Config) -> usize {
    config.threads.map_or_else(|| Tuned::known(config).calibration.threads, NonZeroUsize::get)
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Writes the file, with a progress bar. Ctrl-C ends it and leaves a partial file, with which the next run continues. `None` when another
/// process writes it.
pub(super) fn write(plan: &QuantizePlan<'_>, out: &Path, context: &Context) -> Result<Option<u64>, CliError> {
    let bar = context.terminal.bytes_bar("writing", plan.bytes().0);
    let cancel = LoadCancel::default();
    let written = async_runtime::until_stopped(&cancel, || {
        plan.write(out, &cancel, &mut |progress| bar.set_position(progress.done_bytes))
    });
    bar.finish_and_clear();
    match written? {
        Err(QuantizeError::Cancelled) => Err(CliError::Interrupted),
        Err(QuantizeError::Locked { .. }) => Ok(None),
        written => written.map(Some).map_err(CliError::other),
    }
}

fn summary(plan: &QuantizePlan<'_>, out: &Path, file_bytes: u64, elapsed: Duration) -> String {
    let (from, to) = plan.bytes();
    let bits = |bytes: u64| 8.0 * bytes as f64 / plan.values().max(1) as f64;
    format!(
        "{}: {}, {:.2} bits a weight (from {}, {:.2} bits), in {:.1} s\n",
        out.display(),
        ByteSize(file_bytes),
        bits(to),
        ByteSize(from),
        bits(from),
        elapsed.as_secs_f64()
    )
}

/// The format of each tensor.
fn table(plan: &QuantizePlan<'_>) -> String {
    let columns = [
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("size", Align::Right),
    ];
    let rows: Vec<Vec<String>> = plan
        .tensors
        .iter()
        .map(|tensor| {
            let shape = tensor.dims.iter().rev().map(u64::to_string).collect::<Vec<_>>().join(" x ");
            let (from, to) = (tensor.from.to_string(), tensor.to.to_string());
            vec![tensor.name.clone(), shape, from, to, ByteSize(tensor.to_bytes).to_string()]
        })
        .collect();
    let (from, to) = plan.bytes();
    format!("{}\nFrom {} to {}.\n", markdown(&columns, &rows), ByteSize(from), ByteSize(to))
}
