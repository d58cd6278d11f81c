//! `cuelight quantize`: writes a model with fewer bits. `cuelight convert` writes it as it is, in the same way.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuelight_engine::checkpoint;
use cuelight_engine::quantize::{ImportanceMatrix, Override, QuantizeError, QuantizeOptions, QuantizePlan, Target};

use super::terminal::{Align, markdown, print};
use super::w8a8::{self, Job, W8a8Args};
use super::{CliError, Context, gguf_copy, model_help};
use crate::config::flags::{Flags, HubFlags};
use crate::config::{ByteSize, Given};

/// Write a copy of a model with fewer bits per weight.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight quantize ./model-f16.gguf ./model-q4_k_m.gguf q4_k_m
  cuelight quantize ./Qwen3-8B ./qwen3-8b.gguf q4_k_m       from a directory
  cuelight quantize ./f16.gguf ./small.gguf iq2_xxs --imatrix ./i.gguf
  cuelight quantize ./f16.gguf ./mixed.gguf q4_k_m --tensor-type attn_v=q8_0
  cuelight quantize ./f16.gguf ./out.gguf q4_k_m --dry-run  show formats
  cuelight quantize ./Qwen3 ./W8A8 w8a8 --smooth 0.5 --calibration ./text.txt

FORMAT is f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, q3_k_l, q3_k_m, \
q3_k_s, q2_k, mxfp4_moe, iq3_m, iq3_s, iq3_xs, iq3_xxs, iq2_m, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s, nvfp4, tq1_0, tq2_0, q2_0 or q1_0. \
Mixtures are those of llama.cpp: some tensors get more bits than others. From iq3_xs down (by size), the iq formats need --imatrix.

With w8a8, MODEL and OUT are Hugging Face directories. The matrices of layers get 8-bit integers with a scale for each output, in the \
form that vLLM, transformers and Cuelight load (compressed-tensors, int-quantized).")]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    /// The format to write.
    #[arg(value_name = "FORMAT", value_parser = parse_format)]
    format: Format,
    /// File with the importance of each column, as `llama-imatrix` writes it.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Format for the tensors whose names match a regular expression; may be given several times, and the first match counts.
    #[arg(long = "tensor-type", value_name = "PATTERN=FORMAT", value_parser = parse_override)]
    overrides: Vec<Override>,
    /// Quantize tensors that are quantized already, at a loss of precision.
    #[arg(long)]
    allow_requantize: bool,
    #[command(flatten)]
    w8a8: W8a8Args,
}

/// What a model is quantized to.
#[derive(Debug, Clone, Copy)]
enum Format {
    /// A GGUF file in a mixture.
    Gguf(Target),
    /// A directory with 8-bit weights, for 8-bit activations.
    W8a8,
}

/// The name of [`Format::W8a8`].
const W8A8: &str = "w8a8";

fn parse_format(text: &str) -> Result<Format, String> {
    if text == W8A8 {
        return Ok(Format::W8a8);
    }
    text.parse().map(Format::Gguf).map_err(|error: QuantizeError| format!("{error}; or {W8A8} for a directory"))
}

/// What is read, and how the new file is written.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    #[arg(value_name = "MODEL", help = format!("The model to read: {}", model_help::FORMS))]
    model: String,
    /// The file to write; a directory for w8a8.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Show the format of each tensor and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Replace OUT if it exists.
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

    /// A flag that was given and is only for GGUF files.
    fn gguf_flag(&self) -> Option<&'static str> {
        let flags = [
            (self.imatrix.is_some(), "--imatrix"),
            (!self.overrides.is_empty(), "--tensor-type"),
            (self.allow_requantize, "--allow-requantize"),
        ];
        flags.into_iter().find(|(is_given, _)| *is_given).map(|(_, flag)| flag)
    }
}

impl OutputArgs {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }

    /// Refuses an output that exists and is not to be replaced.
    fn check_out(&self) -> Result<(), CliError> {
        if self.dry_run || self.force || !self.out.exists() {
            return Ok(());
        }
        let out = self.out.display();
        Err(CliError::Failed(format!("{out} exists; give another name, or --force to replace it")))
    }
}

pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let target = match (args.format, args.w8a8.given(), args.gguf_flag()) {
        (Format::Gguf(target), None, _) => target,
        (Format::W8a8, _, None) => return write_directory(args, context),
        (Format::Gguf(_), Some(flag), _) => return Err(CliError::Failed(format!("{flag} is only for {W8A8}"))),
        (Format::W8a8, _, Some(flag)) => {
            return Err(CliError::Failed(format!("{flag} is not for {W8A8}, but for the formats of GGUF files")));
        }
    };
    let importance = args.imatrix.as_deref().map(ImportanceMatrix::open).transpose().map_err(CliError::other)?;
    let options = QuantizeOptions {
        target: Some(target),
        overrides: args.overrides.clone(),
        importance,
        allow_requantize: args.allow_requantize,
        ..QuantizeOptions::default()
    };
    write_copy(&args.output, options, context)
}

fn write_directory(args: &Args, context: &Context) -> Result<(), CliError> {
    let output = &args.output;
    output.check_out()?;
    let threads = output.threads.or_else(|| NonZeroUsize::new(gguf_copy::threads(&context.config)));
    let job = Job {
        model: context.locate(&output.model)?,
        out: &output.out,
        is_dry_run: output.dry_run,
        threads: threads.unwrap_or(NonZeroUsize::MIN),
    };
    w8a8::execute(&args.w8a8, &job, context)
}

/// Writes a complete copy of a model as a GGUF file, and prints what was written.
///
/// # Errors
/// [`CliError`] when the model cannot be opened or quantized, or the file exists or cannot be written.
pub(super) fn write_copy(args: &OutputArgs, options: QuantizeOptions, context: &Context) -> Result<(), CliError> {
    args.check_out()?;
    let path = context.locate(&args.model)?;
    if is_same_file(&path, &args.out) {
        return Err(CliError::Failed(format!(
            "{} is the model itself; give another name for the output",
            args.out.display()
        )));
    }
    let threads = args.threads.map_or_else(|| gguf_copy::threads(&context.config), NonZeroUsize::get);
    let options = QuantizeOptions { is_complete: true, threads, ..options };
    let checkpoint = checkpoint::open(&path).map_err(CliError::other)?;
    let plan = QuantizePlan::new(&*checkpoint, &options).map_err(gguf_copy::refused("give --allow-requantize"))?;
    if args.dry_run {
        return print(&table(&plan));
    }
    let start = Instant::now();
    match gguf_copy::write(&plan, &args.out, context)? {
        Some(bytes) => print(&summary(&plan, &args.out, bytes, start.elapsed())),
        None => Err(CliError::Failed(format!("{}: another process is writing this file", args.out.display()))),
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
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
            let [from, to] = tensor.types();
            vec![tensor.name.clone(), shape, from, to, ByteSize(tensor.to_bytes).to_string()]
        })
        .collect();
    let (from, to) = plan.bytes();
    format!("{}\nFrom {} to {}.\n", markdown(&columns, &rows), ByteSize(from), ByteSize(to))
}
