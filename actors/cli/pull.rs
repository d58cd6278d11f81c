//! `cuelight pull`: a model from the hub into the cache.

use super::terminal::print;
use super::{CliError, Context};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};

/// Download a model, or bring it up to date.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight pull org/repo                       its Q4_K_M, or its only GGUF file
  cuelight pull org/repo:Q8_0                  another quantisation
  cuelight pull org/repo/model-q5_k_m.gguf     a file by its name
  cuelight pull demo                           the built-in demo model

A download that was cut off goes on where it stopped when the command is run again. Files land in the Hugging Face
cache, where other programs find them too. Set HF_TOKEN for gated and private repositories.")]
pub struct Args {
    /// What to download.
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

/// Downloads, and prints where the file is.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let path = context.hub().pull(&args.model, &context.terminal.downloads())?;
    print(&format!("{}\n", path.display()))
}
