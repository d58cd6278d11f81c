//! `cuelight pull`: downloads a model into the cache.

use super::terminal::print;
use super::{CliError, Context};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};
use crate::hub::HubError;
use crate::hub::reference::{ModelFormat, ModelReference};

/// Download a model, or update it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight pull org/repo              Q4_K_M, the only GGUF, or safetensors
  cuelight pull org/repo:Q8_0         another quantization
  cuelight pull org/repo/model.gguf   one file of the repository
  cuelight pull org/repo:safetensors  one of two formats
  cuelight pull ollama://llama3.2:1b  from the registry ollama_registry
  cuelight pull demo                  the built-in demo model

An interrupted download continues where it stopped when the command runs again. Files go to the Hugging Face cache, \
which other programs share. Set HF_TOKEN for gated and private repositories.")]
pub struct Args {
    /// The model to download.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Format to download, where the repository has both; if not given, gguf if there is such a file.
    #[arg(long, value_name = "gguf|safetensors")]
    format: Option<ModelFormat>,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }
}

/// Downloads the model and prints the path of its file or directory.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let model = args.format.map_or_else(|| Ok(args.model.clone()), |format| in_format(&args.model, format))?;
    let path = context.pull(&model)?;
    print(&format!("{}\n", path.display()))
}

/// The reference to a model of the hub in a format.
fn in_format(model: &str, format: ModelFormat) -> Result<String, HubError> {
    match ModelReference::parse(model)? {
        ModelReference::Repository(wanted) => wanted.in_format(format).map(|wanted| wanted.to_string()),
        _ => Err(HubError::OtherFormat { reference: model.to_owned(), format: format.to_string() }),
    }
}
