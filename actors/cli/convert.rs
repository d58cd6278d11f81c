//! `cuelight convert`: writes a Hugging Face directory as a GGUF file, with the formats that its weights have.

use cuelight_engine::quantize::QuantizeOptions;

use super::quantize::{self, OutputArgs};
use super::{CliError, Context};
use crate::config::Given;

/// Write a Hugging Face directory as one GGUF file, without loss.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight convert ./Qwen3-8B ./qwen3-8b.gguf
  cuelight convert ./Qwen3-8B ./qwen3-8b.gguf --dry-run  show the formats

Weights keep their formats. Those that GGUF files do not have, such as FP8, are written in float32.")]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.output.given()
    }
}

/// Converts the model and prints what was written.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    quantize::write_copy(&args.output, QuantizeOptions::default(), context)
}
