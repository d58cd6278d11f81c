//! `cuelight tokenize`: the token ids of a text.

use std::io::Read;
use std::path::PathBuf;

use cuelight_engine::checkpoint;
use cuelight_engine::load;
use serde_json::json;

use super::terminal::print;
use super::{CliError, Context, model_help};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};

/// Print the token ids of a text as a JSON list.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight tokenize demo \"Hello world\"
  cuelight tokenize demo --pieces \"Hello world\"  with the text of tokens
  cuelight tokenize vocab.gguf --file book.txt   weights are not needed
  git diff | cuelight tokenize demo | jq length  how long is a diff?")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// The text; without it: --file, or standard input.
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,
    /// Read the text from a file, byte for byte.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave out the special tokens before and after the text.
    #[arg(long)]
    no_special: bool,
    /// Read text like <|im_end|> as plain text, not as the special token.
    #[arg(long)]
    no_parse_special: bool,
    /// Print an object with id and text for each token.
    #[arg(long)]
    pieces: bool,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }

    fn text(&self) -> Result<String, CliError> {
        if let Some(text) = &self.text {
            return Ok(text.clone());
        }
        let (bytes, source) = match &self.file {
            Some(path) => (std::fs::read(path), path.display().to_string()),
            None => {
                let mut bytes = Vec::new();
                (std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes), "standard input".to_owned())
            }
        };
        let bytes = bytes.map_err(CliError::io(format!("read {source}")))?;
        String::from_utf8(bytes).map_err(|error| {
            CliError::Failed(format!("{source} is not UTF-8 text (at byte {})", error.utf8_error().valid_up_to()))
        })
    }
}

/// Prints the ids.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let text = args.text()?;
    let path = context.locate(&args.model)?;
    let checkpoint = checkpoint::open(&path).map_err(CliError::other)?;
    let tokenizer = load::tokenizer(&*checkpoint).map_err(CliError::other)?;
    let ids = tokenizer.encode(&text, !args.no_special, !args.no_parse_special).map_err(CliError::other)?;
    let list = if args.pieces {
        let piece = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id, false);
            json!({ "id": id, "text": String::from_utf8_lossy(bytes) })
        };
        json!(ids.iter().map(piece).collect::<Vec<_>>())
    } else {
        json!(ids)
    };
    print(&format!("{list}\n"))
}
