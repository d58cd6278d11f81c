//! `cuelight imatrix`: which columns of a model's weights matter, for `cuelight quantize --imatrix`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cuelight_engine::checkpoint::{self, Checkpoint};
use cuelight_engine::importance::{ImportanceSums, MeasuredText};

use super::observed::{self, Settings};
use super::terminal::print;
use super::{CliError, Context, model_help, text_file};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};

/// Measure which columns of a model's weights matter on a text, for quantize --imatrix.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight imatrix ./model-f16.gguf calibration.txt -o imatrix.gguf
  cuelight quantize ./model-f16.gguf ./small.gguf iq4_xs --imatrix imatrix.gguf

The text is cut into consecutive windows of --context tokens, as by perplexity. For each column of each weight the squares \
of its inputs are added up; for experts, over the tokens that use the expert. The file is that of llama.cpp's llama-imatrix. \
It is computed on the CPU.")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// The text: a file in UTF-8.
    #[arg(value_name = "TEXT")]
    text: PathBuf,
    /// The file to write.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens in a window.
    #[arg(short = 'c', long, value_name = "N", default_value = "512")]
    context: NonZeroUsize,
    /// Most windows to compute; if not given, all of the text.
    #[arg(long, value_name = "N")]
    chunks: Option<NonZeroUsize>,
    /// Replace the output file if it exists.
    #[arg(long)]
    force: bool,
    /// Number of threads; default: as configured.
    #[arg(short = 't', long = "threads", id = "thread_count", value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }
}

/// Measures the text and writes the file.
///
/// # Errors
/// [`CliError`] when the text is too short, the model does not run on the CPU, or the file exists or cannot be written.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    if !args.force && args.output.exists() {
        let reason = format!("{} exists; give another name, or --force to replace it", args.output.display());
        return Err(CliError::Failed(reason));
    }
    let text = text_file::read(&args.text)?;
    let path = context.locate(&args.model)?;
    let checkpoint = checkpoint::open(&path).map_err(CliError::other)?;
    check_order(&*checkpoint)?;
    let sums = Arc::new(Mutex::new(ImportanceSums::default()));
    let settings =
        Settings { command: "imatrix", window_tokens: args.context, windows: args.chunks, threads: args.threads };
    let (windows, perplexity) = observed::compute(&settings, path, &text, sums.clone(), context)?;
    let mut sums = std::mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner));
    sums.retain(checkpoint.tensors());
    if sums.unused() > 0 {
        let unused = sums.unused();
        context
            .terminal
            .notice(&format!("{unused} matrices of experts were never used by this text; a longer one may use them"));
    }
    let measured = MeasuredText { name: args.text.display().to_string(), windows, window_tokens: args.context.get() };
    write(&args.output, &sums.file(&measured))?;
    print(&format!(
        "{}: {} tensors, {windows} windows of {} tokens, perplexity {:.4}\n",
        args.output.display(),
        sums.len(),
        args.context,
        perplexity.value()
    ))
}

/// Refuses a model with columns in an order of their own: that of its importance matrix would be another one.
fn check_order(checkpoint: &dyn Checkpoint) -> Result<(), CliError> {
    match checkpoint.tensors().iter().find(|tensor| tensor.name.ends_with(".input_order")) {
        None => Ok(()),
        Some(tensor) => Err(CliError::Failed(format!(
            "{}: {:?} reorders the columns of its matrix, which an importance matrix cannot state: measure the model before its \
             quantization",
            checkpoint.path().display(),
            tensor.name
        ))),
    }
}

/// Writes the file in one step, so that an interrupted command leaves none.
fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let fresh = path.with_added_extension("new");
    let write = std::fs::write(&fresh, bytes).and_then(|()| std::fs::rename(&fresh, path));
    write.map_err(CliError::io(format!("write {}", path.display())))
}
