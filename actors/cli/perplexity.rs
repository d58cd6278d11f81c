//! `cuelight perplexity`: how well a model predicts a text.
//!
//! Like `bench`, it drives the engine directly, without actors. The computation is in [`cuelight_engine::perplexity`].

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cuelight_engine::load::{ActivationBits, Kernel, KvType, LoadOptions, ModelCard};
use cuelight_engine::perplexity::{Perplexity, Scored, Scorer, Text};
use serde_json::json;

use super::terminal::{Align, TableFormat, markdown, print};
use super::tuning::Tuned;
use super::{CliError, Context, model, model_help, quantized, text_file};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags};

/// Measure a model's perplexity on a text; lower means a better prediction.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight perplexity demo LICENSE-APACHE  windows of 512 tokens
  cuelight perplexity ./model.gguf book.txt -c 2048
  cuelight perplexity ./model.gguf book.txt --kv-type f32 -o json

The text is cut into consecutive windows of --context tokens, and each is computed independently; tokens after the last \
full window are left out. For a model with a BOS token, that token replaces the first token of each window. The tokens \
after the first half of each window are scored: with 512 tokens those at positions 257 to 511, counted from 0.")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// The text: a file in UTF-8.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Tokens in a window.
    #[arg(short = 'c', long, value_name = "N", default_value = "512")]
    context: NonZeroUsize,
    /// Score all tokens of a window except the first, not only the later half.
    #[arg(long)]
    all_tokens: bool,
    /// Number of threads; default: as configured.
    #[arg(short = 't', long = "threads", id = "thread_count", value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Storage of keys and values: f16, f32, q8_0; default: as configured.
    #[arg(long = "kv-type", id = "kv_storage", value_name = "TYPE")]
    kv_type: Option<KvType>,
    /// Instruction set: scalar, avx2, avx2-integer, avx-vnni, avx512-vnni, amx-int8, neon, neon-integer, neon-dot, neon-i8mm;
    /// default: as configured.
    #[arg(long = "kernel", id = "instruction_set", value_name = "KERNEL")]
    kernel: Option<Kernel>,
    /// Bits of activations in integer kernels: 15 or 8; default: as configured.
    #[arg(long = "activation-bits", id = "bits_of_activations", value_name = "BITS")]
    activation_bits: Option<ActivationBits>,
    /// Output format.
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum, default_value = "md")]
    output: TableFormat,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.hub.given()
    }

    fn scored(&self) -> Scored {
        if self.all_tokens { Scored::All } else { Scored::LaterHalf }
    }
}

/// The result of a measurement.
struct Outcome {
    path: PathBuf,
    card: ModelCard,
    device: String,
    text: Text,
    context: usize,
    scored: Scored,
    windows: usize,
    perplexity: Perplexity,
    elapsed: Duration,
}

/// Computes the perplexity and prints it.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let text = text_file::read(&args.file)?;
    let path = context.locate(&args.model)?;
    let configured =
        model::load_options(&context.config, &Tuned::known(&context.config), quantized::source(path, context)?)?;
    let options = LoadOptions {
        context_tokens: Some(args.context.get()),
        max_sequences: 1,
        kv_bytes: None,
        state_bytes: None,
        threads: args.threads.map_or(configured.threads, NonZeroUsize::get),
        kv_type: args.kv_type.unwrap_or(configured.kv_type),
        kernel: args.kernel.unwrap_or(configured.kernel),
        activation_bits: args.activation_bits.unwrap_or(configured.activation_bits),
        ..configured
    };
    let outcome = compute(args, &text, &options, context)?;
    print(&match args.output {
        TableFormat::Md => outcome.markdown(),
        TableFormat::Json => outcome.json(),
    })
}

fn compute(args: &Args, text: &str, options: &LoadOptions, context: &Context) -> Result<Outcome, CliError> {
    let plan = model::plan_for_tokens(options, "perplexity")?;
    let (path, card, device) = (plan.path().to_owned(), plan.card().clone(), plan.limits().device.clone());
    let length = args.context.get();
    if length > card.context_train {
        let trained = card.context_train;
        context.terminal.notice(&format!("warning: the model was trained with windows of {trained} tokens at most"));
    }
    let mut loaded = plan.load(&mut |_| {}).map_err(CliError::other)?;
    let text = Text::new(&loaded.tokenizer, text).map_err(CliError::other)?;
    let windows = text.windows(length, args.scored()).map_err(CliError::other)?;
    let bar = context.terminal.count_bar("scoring", windows.len(), "windows");
    let (mut scorer, mut perplexity, start) = (Scorer::new(&mut loaded.engine), Perplexity::default(), Instant::now());
    for window in &windows {
        scorer.score(window, &mut perplexity).map_err(CliError::other)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (scored, elapsed) = (args.scored(), start.elapsed());
    Ok(Outcome { path, card, device, text, context: length, scored, windows: windows.len(), perplexity, elapsed })
}

impl Outcome {
    /// Speed over all computed tokens, scored or not.
    fn tokens_per_second(&self) -> f64 {
        (self.windows * self.context) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn markdown(&self) -> String {
        let columns = [("model", Align::Left), ("backend", Align::Left), ("windows", Align::Right)];
        let columns = [&columns[..], &[("scored", Align::Right), ("perplexity", Align::Right), ("t/s", Align::Right)]];
        let row = vec![
            format!("{} {}", self.card.name, self.card.quantization),
            self.device.clone(),
            format!("{} x {}", self.windows, self.context),
            self.perplexity.tokens.to_string(),
            format!("{:.4} ± {:.4}", self.perplexity.value(), self.perplexity.standard_error()),
            format!("{:.2}", self.tokens_per_second()),
        ];
        markdown(&columns.concat(), &[row])
    }

    fn json(&self) -> String {
        let object = json!({
            "build_version": env!("CARGO_PKG_VERSION"),
            "backends": self.device,
            "model_filename": self.path,
            "model_type": format!("{} {}", self.card.architecture, self.card.quantization),
            "context": self.context,
            "scored": match self.scored {
                Scored::LaterHalf => "later half",
                Scored::All => "all",
            },
            "bos": self.text.bos,
            "text_tokens": self.text.tokens.len(),
            "windows": self.windows,
            "scored_tokens": self.perplexity.tokens,
            "mean_nats": self.perplexity.mean_nats(),
            "stderr_nats": self.perplexity.standard_error_nats(),
            "perplexity": self.perplexity.value(),
            "perplexity_stderr": self.perplexity.standard_error(),
            "seconds": self.elapsed.as_secs_f64(),
            "tokens_per_second": self.tokens_per_second(),
        });
        format!("{object:#}\n")
    }
}
