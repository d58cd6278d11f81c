//! The setting `quantize`: a model is quantized before it is loaded, and the copy is kept for the next time.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cuelight_engine::checkpoint::{self, Checkpoint};
use cuelight_engine::load::Source;
use cuelight_engine::quantize::{QuantizeOptions, QuantizePlan, Target};
use sha2::{Digest, Sha256};

use super::{CliError, Context, gguf_copy};
use crate::config::ByteSize;

/// Time between two looks at what another process writes.
const PAUSE: Duration = Duration::from_millis(500);

/// The source of a model: its file, and its quantized copy if the configuration asks for one. Writes the copy if there is none.
///
/// # Errors
/// [`CliError`] when the model cannot be opened or quantized, or the copy cannot be written.
pub fn source(file: PathBuf, context: &Context) -> Result<Source, CliError> {
    let Some(target) = context.config.quantize else { return Ok(Source::File(file)) };
    let checkpoint = checkpoint::open(&file).map_err(CliError::other)?;
    let folder = context.config.cache_dir.join("quantized");
    let copy = folder.join(copy_name(&*checkpoint, target));
    if !copy.is_file() {
        std::fs::create_dir_all(&folder).map_err(CliError::io(format!("create {}", folder.display())))?;
        write(&*checkpoint, target, &copy, context)?;
    }
    Ok(Source::Quantized { original: file, copy })
}

fn write(checkpoint: &dyn Checkpoint, target: Target, copy: &Path, context: &Context) -> Result<(), CliError> {
    let threads = gguf_copy::threads(&context.config);
    let options = QuantizeOptions { target: Some(target), threads, ..QuantizeOptions::default() };
    let plan = QuantizePlan::new(checkpoint, &options).map_err(gguf_copy::refused("leave out --quantize"))?;
    let size = ByteSize(plan.bytes().1);
    context.terminal.notice(&format!("quantizing to {target} once; the copy ({size}) is kept in {}", copy.display()));
    let mut is_told = false;
    while !copy.is_file() && gguf_copy::write(&plan, copy, context)?.is_none() {
        if !std::mem::replace(&mut is_told, true) {
            context.terminal.notice("another process quantizes the same model: waiting for its copy");
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The name of a copy. It depends on the files of the model and their versions, the format and the program's version.
fn copy_name(checkpoint: &dyn Checkpoint, target: Target) -> String {
    let mut hash = Sha256::new();
    hash.update(checkpoint.files().fingerprint());
    hash.update(env!("CARGO_PKG_VERSION"));
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let stem = checkpoint.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    format!("{stem}-{target}-{hash}.gguf")
}
