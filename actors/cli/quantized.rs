//! The setting `quantize`: a model is quantized before it is loaded, and the copy is kept for the next time.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cuelight_engine::checkpoint::{self, Checkpoint};
use cuelight_engine::load::Source;
use cuelight_engine::quantize::{QuantizeError, QuantizeOptions, QuantizePlan, Target};
use cuelight_engine::tower;
use sha2::{Digest, Sha256};

use super::{CliError, Context, gguf_copy};
use crate::config::ByteSize;

/// Time between two looks at what another process writes.
const PAUSE: Duration = Duration::from_millis(500);

/// The format of encoders: fewer bits would cost more of what they see or hear than they save of the memory of a whole model.
const OF_ENCODERS: &str = "q8_0";

/// The source of a model: its file, and its quantized copy if the configuration asks for one. Writes the copy if there is none.
///
/// # Errors
/// [`CliError`] when the model cannot be opened or quantized, or the copy cannot be written.
pub fn source(file: PathBuf, context: &Context) -> Result<Source, CliError> {
    let Some(target) = context.config.quantize else { return Ok(Source::File(file)) };
    let checkpoint = checkpoint::open(&file).map_err(CliError::other)?;
    let copy = folder(context)?.join(copy_name(&*checkpoint, "", target));
    if !copy.is_file() {
        let options = options(target, context);
        let plan = QuantizePlan::new(&*checkpoint, &options).map_err(gguf_copy::refused("leave out --quantize"))?;
        write(&plan, target, &copy, context)?;
    }
    Ok(Source::Quantized { original: file, copy })
}

/// The quantized copy of the encoders of images and audio of a file, if the configuration asks for one; `None` for a file whose
/// encoders are quantized already. Writes the copy if there is none.
///
/// # Errors
/// [`CliError`] when the file cannot be opened, or the copy cannot be written.
pub fn encoders(file: &Path, context: &Context) -> Result<Option<PathBuf>, CliError> {
    let Some(target) = context.config.quantize.and(OF_ENCODERS.parse().ok()) else { return Ok(None) };
    let checkpoint = tower::file::open(file, None).map_err(CliError::other)?;
    let copy = folder(context)?.join(copy_name(&*checkpoint, "-encoders", target));
    if !copy.is_file() {
        let options = options(target, context);
        let mut plan = match QuantizePlan::new(&*checkpoint, &options) {
            Err(QuantizeError::AlreadyQuantized { .. }) => return Ok(None),
            plan => plan.map_err(CliError::other)?,
        };
        // Other tensors are read from the original. Some have more dimensions than a GGUF file can state.
        plan.tensors.retain(|tensor| tensor.from != tensor.to);
        if plan.tensors.is_empty() {
            return Ok(None);
        }
        write(&plan, target, &copy, context)?;
    }
    Ok(Some(copy))
}

/// The directory of copies.
fn folder(context: &Context) -> Result<PathBuf, CliError> {
    let folder = context.config.cache_dir.join("quantized");
    std::fs::create_dir_all(&folder).map_err(CliError::io(format!("create {}", folder.display())))?;
    Ok(folder)
}

fn options(target: Target, context: &Context) -> QuantizeOptions {
    let threads = gguf_copy::threads(&context.config);
    QuantizeOptions { target: Some(target), threads, ..QuantizeOptions::default() }
}

fn write(plan: &QuantizePlan<'_>, target: Target, copy: &Path, context: &Context) -> Result<(), CliError> {
    let size = ByteSize(plan.bytes().1);
    context.terminal.notice(&format!("quantizing to {target} once; the copy ({size}) is kept in {}", copy.display()));
    let mut is_told = false;
    while !copy.is_file() && gguf_copy::write(plan, copy, context)?.is_none() {
        if !std::mem::replace(&mut is_told, true) {
            context.terminal.notice("another process quantizes the same model: waiting for its copy");
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The name of a copy of a part of a model. It depends on the files of the model and their versions, the format and the program's
/// version.
fn copy_name(checkpoint: &dyn Checkpoint, part: &str, target: Target) -> String {
    let mut hash = Sha256::new();
    hash.update(checkpoint.files().fingerprint());
    hash.update(env!("CARGO_PKG_VERSION"));
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let stem = checkpoint.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    format!("{stem}{part}-{target}-{hash}.gguf")
}
