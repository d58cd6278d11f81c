//! `cuelight pull`: downloads a model into the cache.

use super::terminal::print;
use super::{CliError, Context};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};

/// Download a model, or update it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight pull org/repo                       its Q4_K_M, or its only GGUF file
  cuelight pull org/repo:Q8_0                  another quantization
  cuelight pull org/repo/model-q5_k_m.gguf     one file of the repository
  cuelight pull demo                           the built-in demo model

An interrupted download continues where it stopped when the command runs again. Files go to the Hugging Face cache,
which other programs share. Set HF_TOKEN for gated and private repositories.")]
pub struct Args {
    /// The model to download.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }
}

/// Downloads the model and prints the path of its file.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let path = context.pull(&args.model)?;
    print(&format!("{}\n", path.display()))
}
