//! Tips for flags of other programs: llama.cpp's and Ollama's names, with ours.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of other programs with the tip for each; the first column may hold several names.
const TIPS: &[(&[&str], &str)] = &[
    (&["-m", "--model"], "the model is the first argument, without a flag: cuelight run MODEL"),
    (&["-p", "--prompt"], "the prompt follows the model, without a flag: cuelight run MODEL PROMPT"),
    (
        &["-n", "--n-predict", "--predict", "--num-predict", "--num_predict"],
        "--max-tokens N limits the answer's length",
    ),
    (&["-c", "--ctx", "--num-ctx", "--num_ctx", "--n-ctx", "--context"], "--ctx-size TOKENS sets the context length"),
    (&["-t"], "--threads N sets the number of threads"),
    (&["-s"], "--seed N sets the seed"),
    (&["--generation-config"], "--no-model-sampling ignores the sampling of generation_config.json"),
    (&["--temperature"], "--temp T sets the temperature"),
    (&["--sys", "--system-prompt", "--sys-prompt"], "--system TEXT sets the system prompt"),
    (
        &["-ngl", "--n-gpu-layers", "--num-gpu", "--num_gpu"],
        "--device vulkan uses the GPU, --gpu-layers N splits the layers",
    ),
    (&["-np", "--parallel"], "--max-seqs N sets how many sequences are computed at once"),
];

/// The subcommands that run a model with our own flags. `bench` has llama-bench's.
const SUBCOMMANDS: [&str; 2] = ["run", "serve"];

/// Adds a tip to the error for an unknown flag that another program has.
#[must_use]
pub fn with_tip(mut error: clap::Error, subcommand: &str) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument || !SUBCOMMANDS.contains(&subcommand) {
        return error;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    let flag = flag.split('=').next().unwrap_or(flag);
    if let Some(tip) = tip(flag) {
        // clap's own guess by spelling would compete with the tip.
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

fn tip(flag: &str) -> Option<&'static str> {
    TIPS.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, tip)| *tip)
}
