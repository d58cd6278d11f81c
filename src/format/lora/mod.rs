//! Low-rank adapters in files: pairs of matrices and their scales, not yet matched with a model.
//!
//! - [`error`]: why an adapter cannot be loaded
//! - `pair`: what an adapter consists of
//! - `peft`: directories as the library PEFT saves them; `peft_config`: their `adapter_config.json`
//! - `gguf`: GGUF files

pub mod error;
mod gguf;
mod pair;
mod peft;
mod peft_config;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use error::{AdapterError, AdapterFault};
pub use pair::{LoraFile, LoraPair, WeightName};

impl LoraFile {
    /// Opens a GGUF adapter or a PEFT directory. Reads headers only.
    ///
    /// # Errors
    /// [`AdapterError`] naming the file and what is wrong with it or not supported.
    pub fn open(path: &Path) -> Result<Self, AdapterError> {
        let file = if path.is_dir() { peft::open(path)? } else { gguf::open(path)? };
        if file.pairs.is_empty() { Err(AdapterFault::Empty.in_file(path)) } else { Ok(file) }
    }
}
