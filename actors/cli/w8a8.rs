//! `cuelight quantize DIR OUT w8a8`: writes a Hugging Face directory with 8-bit weights, for 8-bit activations.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cuelight_engine::cancel::LoadCancel;
use cuelight_engine::quantize::w8a8::{self, Clip, InputMaxima, Strength, W8a8Error, W8a8Options, W8a8Plan};

use super::observed::{self, Settings};
use super::terminal::{Align, markdown, print};
use super::{CliError, Context, async_runtime, text_file};
use crate::config::ByteSize;

/// What only w8a8 has.
#[derive(Debug, clap::Args)]
pub(super) struct W8a8Args {
    /// With w8a8, the largest weight of an output that is represented: "max", or "percentile:P" to clip the largest weights;
    /// default: max.
    #[arg(long, value_name = "CLIP", value_parser = parse_clip)]
    clip: Option<Clip>,
    /// With w8a8, move factors from activations to weights so that both lose less (SmoothQuant), by a strength from 0 to 1.
    #[arg(long, value_name = "STRENGTH", value_parser = parse_strength, requires = "calibration")]
    smooth: Option<Strength>,
    /// With --smooth, the text on which activations are measured: a file in UTF-8.
    #[arg(long, value_name = "FILE", requires = "smooth")]
    calibration: Option<PathBuf>,
    /// With --smooth, tokens in a window of the text; default: 512.
    #[arg(short = 'c', long = "context", value_name = "N", requires = "smooth")]
    window_tokens: Option<NonZeroUsize>,
}

/// Tokens in a window of a calibration text.
const WINDOW_TOKENS: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// A directory to write.
pub(super) struct Job<'a> {
    pub model: PathBuf,
    pub out: &'a Path,
    /// Whether nothing is written.
    pub is_dry_run: bool,
    pub threads: NonZeroUsize,
}

fn parse_clip(text: &str) -> Result<Clip, String> {
    text.parse().map_err(|error: W8a8Error| error.to_string())
}

fn parse_strength(text: &str) -> Result<Strength, String> {
    text.parse().map_err(|error: W8a8Error| error.to_string())
}

impl W8a8Args {
    /// A flag that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let flags = [(self.clip.is_some(), "--clip"), (self.smooth.is_some(), "--smooth")];
        flags.into_iter().find(|(is_given, _)| *is_given).map(|(_, flag)| flag)
    }
}

/// Writes the directory and prints what was written.
///
/// # Errors
/// [`CliError`] when the model cannot be opened, measured or quantized, or the directory cannot be written.
pub(super) fn execute(args: &W8a8Args, job: &Job<'_>, context: &Context) -> Result<(), CliError> {
    let text = args.calibration.as_deref().map(text_file::read).transpose()?;
    let origins = w8a8::open(&job.model).map_err(CliError::other)?;
    let (clip, smoothing) = (args.clip.unwrap_or_default(), args.smooth);
    let options = W8a8Options { clip, smoothing, threads: job.threads.get(), ..W8a8Options::default() };
    let plan = W8a8Plan::new(&job.model, &origins, options).map_err(CliError::other)?;
    plan.unsmoothed.iter().for_each(|one| {
        context.terminal.notice(&format!("{} is not smoothed: {}", one.norm, one.reason));
    });
    if job.is_dry_run {
        return print(&table(&plan));
    }
    plan.check_place(job.out).map_err(CliError::other)?;
    let start = Instant::now();
    let maxima = match &text {
        Some(text) => measure(args, job, text, context)?,
        None => InputMaxima::default(),
    };
    let bytes = write(&plan, job.out, &maxima, context)?;
    print(&summary(&plan, job.out, bytes, start.elapsed()))
}

/// The largest inputs of the matrices of the model on the text.
fn measure(args: &W8a8Args, job: &Job<'_>, text: &str, context: &Context) -> Result<InputMaxima, CliError> {
    let settings = Settings {
        command: "quantize --smooth",
        window_tokens: args.window_tokens.unwrap_or(WINDOW_TOKENS),
        windows: None,
        threads: Some(job.threads),
    };
    let maxima = Arc::new(Mutex::new(InputMaxima::default()));
    observed::compute(&settings, job.model.clone(), text, maxima.clone(), context)?;
    Ok(std::mem::take(&mut *maxima.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Writes the directory, with a progress bar. Ctrl-C ends it and leaves nothing.
fn write(plan: &W8a8Plan<'_>, out: &Path, maxima: &InputMaxima, context: &Context) -> Result<u64, CliError> {
    let bar = context.terminal.bytes_bar("writing", plan.bytes().0);
    let cancel = LoadCancel::default();
    let written = async_runtime::until_stopped(&cancel, || {
        plan.write(out, maxima, &cancel, &mut |progress| bar.set_position(progress.done_bytes))
    });
    bar.finish_and_clear();
    match written? {
        Err(W8a8Error::Cancelled) => Err(CliError::Interrupted),
        written => written.map_err(CliError::other),
    }
}

fn summary(plan: &W8a8Plan<'_>, out: &Path, bytes: u64, elapsed: Duration) -> String {
    let bits = |bytes: u64| 8.0 * bytes as f64 / plan.values().max(1) as f64;
    format!(
        "{}: {}, {:.2} bits a weight (from {}, {:.2} bits), {}, in {:.1} s\n",
        out.display(),
        ByteSize(bytes),
        bits(bytes),
        ByteSize(plan.bytes().0),
        bits(plan.bytes().0),
        counts(plan),
        elapsed.as_secs_f64()
    )
}

fn counts(plan: &W8a8Plan<'_>) -> String {
    let quantized = plan.tensors.iter().filter(|tensor| tensor.is_quantized).count();
    let smoothed =
        if plan.groups.is_empty() { String::new() } else { format!(", {} norms smoothed", plan.groups.len()) };
    format!("{quantized} of {} tensors quantized{smoothed}", plan.tensors.len())
}

/// What becomes of each tensor.
fn table(plan: &W8a8Plan<'_>) -> String {
    let columns = [("tensor", Align::Left), ("shape", Align::Left), ("from", Align::Left), ("to", Align::Left)];
    let columns = [&columns[..], &[("smoothed", Align::Left), ("size", Align::Right)]].concat();
    let row = |tensor: &w8a8::PlannedTensor| {
        let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let to = if tensor.is_quantized { "I8" } else { tensor.from };
        let smoothed = if tensor.is_smoothed { "yes" } else { "" };
        let words = [&tensor.name, &shape, tensor.from, to, smoothed].map(str::to_owned);
        words.into_iter().chain([ByteSize(tensor.to_bytes).to_string()]).collect()
    };
    let (from, to) = plan.bytes();
    let rows: Vec<Vec<String>> = plan.tensors.iter().map(row).collect();
    format!("{}\nFrom {} to {}, {}.\n", markdown(&columns, &rows), ByteSize(from), ByteSize(to), counts(plan))
}
