//! Tips for flags of other programs: the names that llama.cpp, Ollama and vLLM use, with ours.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A tip for flags of other programs.
struct Tip {
    flags: &'static [&'static str],
    /// The commands for which it is true.
    commands: &'static [&'static str],
    /// `COMMAND` stands for the command.
    text: &'static str,
}

/// The commands whose first argument is a model.
const WITH_MODEL: &[&str] =
    &["run", "serve", "show", "tokenize", "bench", "compare", "perplexity", "imatrix", "quantize"];

/// The commands that have the flags of `[model]`.
const WITH_SETTINGS: &[&str] = &["run", "serve", "show", "replay"];

const TIPS: &[Tip] = &[
    Tip {
        flags: &["-m", "--model", "-hf", "--hf-repo"],
        commands: WITH_MODEL,
        text: "the model is the first argument, without a flag: cuelight COMMAND MODEL",
    },
    Tip {
        flags: &["-p", "--prompt"],
        commands: &["run"],
        text: "the prompt follows the model, without a flag: cuelight run MODEL PROMPT",
    },
    Tip { flags: &["-p"], commands: &["serve"], text: "--port PORT sets the port; prompts come with requests" },
    Tip {
        flags: &["-n", "--n-predict", "--predict", "--num-predict", "--num_predict"],
        commands: &["run"],
        text: "--max-tokens N limits the answer's length",
    },
    Tip {
        flags: &["-n", "--n-predict", "--predict", "--num-predict", "--num_predict", "--max-tokens"],
        commands: &["serve"],
        text: "a request limits its answer (`max_tokens`)",
    },
    Tip {
        flags: &["-c", "--ctx", "--num-ctx", "--num_ctx", "--n-ctx", "--context", "--max-model-len"],
        commands: WITH_SETTINGS,
        text: "--ctx-size TOKENS sets the context length",
    },
    Tip { flags: &["-t"], commands: WITH_SETTINGS, text: "--threads N sets the number of threads" },
    Tip { flags: &["-s"], commands: &["run"], text: "--seed N sets the seed" },
    Tip { flags: &["-s", "--seed"], commands: &["serve"], text: "a request sets its seed (`seed`)" },
    Tip {
        flags: &["--generation-config"],
        commands: WITH_SETTINGS,
        text: "--no-model-sampling ignores the sampling of generation_config.json",
    },
    Tip { flags: &["--temperature"], commands: &["run"], text: "--temp T sets the temperature" },
    Tip {
        flags: &["--temperature", "--temp"],
        commands: &["serve"],
        text: "a request sets the temperature (`temperature`); `temp` under [sampling] of the configuration file is the default",
    },
    Tip {
        flags: &["--top-k", "--top-p", "--min-p"],
        commands: &["serve"],
        text: "a request sets it (`top_k`, `top_p`, `min_p`); [sampling] of the configuration file has the defaults",
    },
    Tip {
        flags: &["-sys", "--sys", "--system-prompt", "--sys-prompt"],
        commands: &["run"],
        text: "--system TEXT sets the system prompt",
    },
    Tip {
        flags: &["-sys", "--sys", "--system", "--system-prompt", "--sys-prompt"],
        commands: &["serve"],
        text: "a request has the system prompt; `system` under [sampling] of the configuration file is the default",
    },
    Tip {
        flags: &["-ngl", "--n-gpu-layers", "--num-gpu", "--num_gpu"],
        commands: WITH_SETTINGS,
        text: "--device vulkan uses the GPU, --gpu-layers N splits the layers",
    },
    Tip {
        flags: &["-ngl", "--n-gpu-layers"],
        commands: &["bench", "perplexity"],
        text: "--device vulkan uses the GPU",
    },
    Tip {
        flags: &["-np", "--parallel", "--max-num-seqs"],
        commands: WITH_SETTINGS,
        text: "--max-seqs N sets how many sequences are computed at once",
    },
    Tip {
        flags: &["-np"], commands: &["bench"], text: "--parallel N,… sets how many sequences are computed at once"
    },
    Tip {
        flags: &["-fa", "--flash-attn"],
        commands: WITH_MODEL,
        text: "leave it out: attention has one implementation",
    },
    Tip {
        flags: &["-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--kv-cache-dtype"],
        commands: &["run", "serve", "show", "replay", "bench", "perplexity"],
        text: "--kv-type TYPE sets the number format of the KV cache",
    },
    Tip {
        flags: &["--swa-full", "--disable-hybrid-kv-cache-manager"],
        commands: WITH_SETTINGS,
        text: "--kv-full keeps all tokens in layers with a sliding window",
    },
    Tip {
        flags: &["--n-cpu-moe", "--cpu-moe"],
        commands: &["run", "serve", "show", "replay", "bench"],
        text: "--cpu-experts LAYERS leaves experts to the CPU",
    },
    Tip {
        flags: &["--gpu-memory-utilization"],
        commands: &["run", "serve", "show", "replay", "bench"],
        text: "--vram SIZE limits the memory that is used on a GPU",
    },
    Tip {
        flags: &["--served-model-name"],
        commands: &["serve"],
        text: "--alias NAME sets the name that clients use for the model",
    },
    Tip { flags: &["--jinja"], commands: &["run", "serve"], text: "leave it out: chat templates are always used" },
];

/// The flag as the user wrote it: one with several letters after one dash was expanded by [`with_two_dashes`].
fn as_written(flag: &str) -> &str {
    let short = flag.strip_prefix('-').filter(|short| several_letters().any(|known| known == *short));
    short.unwrap_or(flag)
}

/// The flags of other programs that have several letters after one dash.
fn several_letters() -> impl Iterator<Item = &'static str> {
    let flags = TIPS.iter().flat_map(|tip| tip.flags).copied();
    flags.filter(|flag| flag.len() > 2 && !flag.starts_with("--"))
}

/// Gives flags of other programs with several letters after one dash a second one: clap would read `-ngl` as `-n -g -l`.
#[must_use]
pub fn with_two_dashes(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut is_value = false;
    let expanded = |argument: OsString| {
        is_value |= argument == "--";
        let flag = argument.to_str().map(|text| text.split('=').next().unwrap_or(text));
        let is_expanded = !is_value && flag.is_some_and(|flag| several_letters().any(|known| known == flag));
        if is_expanded { [OsString::from("-"), argument].into_iter().collect() } else { argument }
    };
    arguments.into_iter().map(expanded).collect()
}

/// Replaces clap's guesses in the error for an unknown flag by a tip, if another program has the flag. Adds a tip to the error
/// for a model in the place of a command.
#[must_use]
pub fn with_tip(error: clap::Error, command: &str) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => with_tip_for_flag(error, command),
        ErrorKind::InvalidSubcommand => with_tip_for_word(error),
        _ => error,
    }
}

/// A first word that resembles no command is a model.
fn with_tip_for_word(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if error.get(ContextKind::SuggestedSubcommand).is_none() {
        let tip = StyledStr::from(format!("cuelight run {word}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

fn with_tip_for_flag(mut error: clap::Error, command: &str) -> clap::Error {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    let flag = as_written(flag.split('=').next().unwrap_or(flag)).to_owned();
    // clap's own guess is to pass the flag as a value, which no command wants.
    error.remove(ContextKind::Suggested);
    if let Some(tip) = tip(&flag, command) {
        // clap's guess by spelling would compete with the tip.
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error.insert(ContextKind::InvalidArg, ContextValue::String(flag));
    error
}

fn tip(flag: &str, command: &str) -> Option<String> {
    let found = TIPS.iter().find(|tip| tip.flags.contains(&flag) && tip.commands.contains(&command));
    found.map(|tip| tip.text.replace("COMMAND", command))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_several_letters_get_a_second_dash_up_to_the_end_of_flags() {
        let expanded = |words: &[&str]| with_two_dashes(words.iter().map(OsString::from).collect());
        assert_eq!(expanded(&["run", "-ngl", "9", "-np=4", "-n", "-v"]), ["run", "--ngl", "9", "--np=4", "-n", "-v"]);
        assert_eq!(expanded(&["run", "--", "-ngl"]), ["run", "--", "-ngl"]);
        assert_eq!((as_written("--ngl"), as_written("--nope"), as_written("-n")), ("-ngl", "--nope", "-n"));
    }

    #[test]
    fn a_tip_is_for_some_commands() {
        assert_eq!(
            tip("-m", "bench").unwrap(),
            "the model is the first argument, without a flag: cuelight bench MODEL"
        );
        assert!(tip("--temperature", "run").unwrap().contains("--temp T"));
        assert!(tip("--temperature", "serve").unwrap().contains("`temperature`"));
        assert_eq!(tip("--temperature", "bench"), None);
    }
}
