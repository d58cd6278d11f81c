//! `cuelight show`: a model's metadata, and the memory that it needs on this machine.

use std::fmt::Write;

use cuelight_engine::checkpoint::{self, Checkpoint, TensorInfo};
use cuelight_engine::load::{self, LoadPlan, Recommended, Source};
use cuelight_engine::model::describe::LayerGroup;
use cuelight_engine::sample::{DenoisingRule, PartialSampling};
use serde_json::{Map, Value, json};

use super::hints::explain_load;
use super::terminal::{Align, print, table};
use super::tuning::Tuned;
use super::{CliError, Context, model, model_help};
use crate::config::flags::{Flags, ModelFlags};
use crate::config::{ByteSize, Given};
use crate::models::memory_json;

/// Show a model's metadata, tensors and memory plan.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight show demo                           metadata and memory plan
  cuelight show ./model.gguf --tensors         also every tensor
  cuelight show ./model.gguf --ctx-size 32768  memory of a long context
  cuelight show ./model.gguf --json            for a program")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Print JSON, with metadata strings in full.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags<ModelFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }
}

/// Prints the metadata, the tensors and the memory plan.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let path = context.locate(&args.model)?;
    let checkpoint = checkpoint::open(&path).map_err(CliError::other)?;
    let options = model::load_options(&context.config, &Tuned::known(&context.config), Source::File(path.clone()))?;
    let options = model::with_windows(options, &context.config);
    let options = model::with_recommended(options, &args.model, context)?;
    // A file that cannot run (a vocabulary, an unknown architecture) can still be shown.
    let plan = load::plan(&options).map_err(|error| explain_load(&error));
    let sampling = options.recommended.sampling_over(checkpoint.sampling());
    let recommended = Recommended { sampling, ..options.recommended };
    if args.json {
        return print(&format!("{:#}\n", as_json(&*checkpoint, &recommended, &plan, args.tensors)));
    }
    let mut text = format!("{}\n\nMetadata\n", path.display());
    let rows: Vec<Vec<String>> =
        checkpoint.metadata().iter().map(|(key, value)| vec![format!("  {key}"), value.to_string()]).collect();
    text.push_str(&table(&[("  KEY", Align::Left), ("VALUE", Align::Left)], &rows));
    let tensors = checkpoint.tensors();
    let bytes: u64 = tensors.iter().filter_map(|tensor| tensor.n_bytes).sum();
    let _ = writeln!(text, "\nTensors: {} ({})", tensors.len(), ByteSize(bytes));
    if args.tensors {
        text.push_str(&tensor_table(tensors));
    }
    for warning in &recommended.sampling.warnings {
        context.terminal.notice(warning);
    }
    text.push_str(&recommendations(&recommended));
    if let Ok(plan) = &plan {
        text.push_str(&layer_table(&plan.card().layers));
        if let Some(DenoisingRule { tokens, max_steps, .. }) = plan.card().denoising {
            let _ = writeln!(text, "\nGenerates blocks of {tokens} tokens in at most {max_steps} steps");
        }
        if let Some(LayerGroup { mixer, feed_forward, .. }) = &plan.card().prediction {
            let _ = writeln!(text, "\nLayer for multi-token prediction (--draft mtp): {mixer}; {feed_forward}");
        }
    }
    let plan = plan.map_or_else(|reason| format!("no memory plan: {reason}"), |plan| plan.memory().to_string());
    let _ = writeln!(text, "\n{}", plan.trim_end());
    print(&text)
}

/// What the publisher recommends, a line for each.
fn recommendations(recommended: &Recommended) -> String {
    let mut lines = String::new();
    if recommended.sampling.stated != PartialSampling::default() {
        let _ = writeln!(lines, "Recommended sampling: {}", recommended.sampling.stated);
    }
    if !recommended.stop.is_empty() {
        let _ = writeln!(lines, "Recommended stop strings: {}", Value::from(recommended.stop.clone()));
    }
    if let Some(system) = &recommended.system {
        let _ = writeln!(lines, "Recommended system prompt: {}", Value::from(system.as_str()));
    }
    lines
}

fn layer_table(layers: &[LayerGroup]) -> String {
    let columns = [("  LAYERS", Align::Right), ("MIXER", Align::Left), ("FEED-FORWARD", Align::Left)];
    let row = |group: &LayerGroup| vec![group.count.to_string(), group.mixer.clone(), group.feed_forward.clone()];
    format!("\n{}", table(&columns, &layers.iter().map(row).collect::<Vec<_>>()))
}

fn tensor_table(tensors: &[TensorInfo]) -> String {
    let columns = [("  NAME", Align::Left), ("SHAPE", Align::Left), ("FORMAT", Align::Left), ("SIZE", Align::Right)];
    let rows: Vec<Vec<String>> = tensors
        .iter()
        .map(|tensor| {
            let shape: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
            let size = tensor.n_bytes.map_or_else(|| "?".to_owned(), |bytes| ByteSize(bytes).to_string());
            vec![format!("  {}", tensor.name), shape.join(" x "), tensor.type_name(), size]
        })
        .collect();
    table(&columns, &rows)
}

fn as_json(
    checkpoint: &dyn Checkpoint,
    recommended: &Recommended,
    plan: &Result<LoadPlan, String>,
    with_tensors: bool,
) -> Value {
    let metadata: Map<String, Value> = checkpoint
        .metadata()
        .iter()
        .map(|(key, value)| {
            let text = checkpoint.optional_str(key).ok().flatten().map(Value::from);
            // Numbers and booleans print as JSON; a list prints as its size.
            let shown = || value.to_string();
            let parsed = || serde_json::from_str(&shown()).unwrap_or_else(|_| Value::from(shown()));
            (key.clone(), text.unwrap_or_else(parsed))
        })
        .collect();
    let mut object =
        json!({ "path": checkpoint.path(), "metadata": metadata, "n_tensors": checkpoint.tensors().len() });
    object["sampling"] = recommended.sampling.stated.json();
    object["stop"] = json!(recommended.stop);
    object["system"] = json!(recommended.system);
    if with_tensors {
        let facts = |tensor: &TensorInfo| json!({ "name": tensor.name, "shape": tensor.dims, "format": tensor.type_name(), "size_bytes": tensor.n_bytes });
        object["tensors"] = checkpoint.tensors().iter().map(facts).collect();
    }
    if let Ok(plan) = plan {
        let group = |group: &LayerGroup| json!({ "count": group.count, "mixer": group.mixer, "feed_forward": group.feed_forward });
        object["layers"] = plan.card().layers.iter().map(group).collect();
        object["prediction_layer"] = plan.card().prediction.as_ref().map(group).into();
    }
    object["memory"] = match plan.as_ref().map(LoadPlan::memory) {
        Ok(memory) => {
            let mut object = memory_json(&memory.used);
            object["available_bytes"] = json!(memory.available_bytes);
            object["kv_blocks"] = json!(memory.kv_blocks);
            object["window_blocks"] = json!(memory.window_blocks);
            object["state_slots"] = json!(memory.state_slots);
            object["context_tokens"] = json!(memory.context_tokens);
            object
        }
        Err(reason) => json!({ "error": reason }),
    };
    object
}
