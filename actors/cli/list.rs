//! `cuelight list`: the models on this machine.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::terminal::{Align, ago, print, table};
use super::{CliError, Context};
use crate::config::ByteSize;
use crate::hub::cache::CachedModel;

/// List the models in the cache.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let hub = context.hub();
    let models = hub.cache().models();
    if args.json {
        let list: Vec<_> = models.iter().map(facts).collect();
        return print(&format!("{:#}\n", serde_json::Value::from(list)));
    }
    if models.is_empty() {
        context.terminal.notice(&format!(
            "no GGUF models in {}; get one with `cuelight pull org/repo`, or try `cuelight run demo`",
            hub.cache().root().display()
        ));
        return Ok(());
    }
    let columns = [("MODEL", Align::Left), ("QUANT", Align::Left), ("SIZE", Align::Right), ("MODIFIED", Align::Left)];
    let now = SystemTime::now();
    let rows: Vec<Vec<String>> = models
        .iter()
        .map(|model| {
            let quant = model.quant.clone().unwrap_or_else(|| "-".to_owned());
            let modified = model.modified.map_or_else(|| "-".to_owned(), |time| ago(time, now));
            vec![model.reference(), quant, ByteSize(model.bytes).to_string(), modified]
        })
        .collect();
    print(&table(&columns, &rows))
}

fn facts(model: &CachedModel) -> serde_json::Value {
    let modified = model.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs());
    json!({
        "model": model.reference(),
        "repo": model.repo,
        "quant": model.quant,
        "size_bytes": model.bytes,
        "modified_unix_s": modified,
        "paths": model.paths,
    })
}
