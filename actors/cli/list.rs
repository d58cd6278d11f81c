//! `cuelight list`: the models on this machine.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::terminal::{Align, ago, print, table};
use super::{CliError, Context};
use crate::config::ByteSize;
use crate::hub::cache::CachedModel;
use crate::hub::gguf_names::quant_of;
use crate::hub::ollama::StoredModel;
use crate::hub::reference::ModelFormat;

/// List the models on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A model that the other commands can name.
struct Row {
    /// The name for the other commands.
    reference: String,
    /// "org/repo"; `None` for the demo and for models of Ollama's registries.
    repo: Option<String>,
    format: ModelFormat,
    quant: Option<String>,
    bytes: u64,
    modified: Option<SystemTime>,
    paths: Vec<PathBuf>,
}

/// Prints the list.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let hub = context.hub();
    let cached = hub.cache().models().into_iter().map(Row::of_cached);
    let host = hub.registry_host();
    let ollama = hub.ollama().models().into_iter().map(|model| Row::of_ollama(model, host.as_deref()));
    let rows: Vec<Row> = hub.kept_demo().and_then(Row::of_demo).into_iter().chain(cached).chain(ollama).collect();
    if args.json {
        let list: Vec<Value> = rows.iter().map(Row::json).collect();
        return print(&format!("{:#}\n", Value::from(list)));
    }
    if rows.is_empty() {
        context.terminal.notice(&format!(
            "no models in {}; get one with `cuelight pull org/repo`, or try `cuelight run demo`",
            hub.cache().root().display()
        ));
        return Ok(());
    }
    let columns = [("MODEL", Align::Left), ("QUANT", Align::Left), ("SIZE", Align::Right), ("MODIFIED", Align::Left)];
    let now = SystemTime::now();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.cells(now)).collect();
    print(&table(&columns, &rows))
}

impl Row {
    fn of_cached(model: CachedModel) -> Self {
        Row {
            reference: model.reference(),
            repo: Some(model.repo),
            format: model.format,
            quant: model.quant,
            bytes: model.bytes,
            modified: model.modified,
            paths: model.paths,
        }
    }

    fn of_demo(path: PathBuf) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        Some(Row {
            reference: "demo".to_owned(),
            repo: None,
            format: ModelFormat::Gguf,
            quant: quant_of(&path.to_string_lossy()),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            paths: vec![path],
        })
    }

    /// A model of a registry; `host` is the one that needs not be named.
    fn of_ollama(model: StoredModel, host: Option<&str>) -> Self {
        Row {
            reference: model.name.for_users_of(host).to_string(),
            repo: None,
            format: ModelFormat::Gguf,
            quant: None,
            bytes: model.bytes,
            modified: model.modified,
            paths: vec![model.path],
        }
    }

    fn cells(&self, now: SystemTime) -> Vec<String> {
        let unknown = || "-".to_owned();
        let quant = self.quant.clone().unwrap_or_else(unknown);
        let modified = self.modified.map_or_else(unknown, |time| ago(time, now));
        vec![self.reference.clone(), quant, ByteSize(self.bytes).to_string(), modified]
    }

    fn json(&self) -> Value {
        let modified = self.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        json!({
            "model": self.reference,
            "repo": self.repo,
            "format": self.format.to_string(),
            "quant": self.quant,
            "size_bytes": self.bytes,
            "modified_unix_s": modified.map(|since| since.as_secs()),
            "paths": self.paths,
        })
    }
}
