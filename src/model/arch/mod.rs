//! The model families, one declarative file each.
//!
//! A family is a [`Family`]: data that says how layers are built. Sizes come from the file's metadata. A new mathematical idea
//! is a new mixer or feed-forward and a variant in `family.rs`, never a test for a family's name.

mod afmoe;
mod apertus;
mod arcee;
mod baichuan;
mod bailingmoe;
mod bailingmoe2;
mod bailingmoe3;
mod bert;
mod bloom;
mod chatglm;
mod cohere2;
mod cohere2moe;
mod command_r;
mod dbrx;
mod deci;
mod deepseek2;
mod deepseek32;
mod deepseek4;
mod diffusion_gemma;
mod dots1;
mod eagle3;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod glm5_next;
mod glm_dsa;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_swa;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;
mod hy_v4;
mod internlm2;
mod jais2;
mod jamba;
mod jina_bert_v3;
mod kimi_k3;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm2moe;
mod lfm3;
mod llama;
mod llama4;
mod llama_embed;
mod mamba;
mod mamba2;
mod mellum;
mod mimo2;
mod minicpm;
mod minimax_m2;
mod minimax_m3;
mod mistral3;
mod mistral4;
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nemotron;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
mod nomic_bert_moe;
mod olmo;
mod olmo2;
mod olmoe;
mod paddleocr;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
mod qwen4exp;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder;
mod starcoder2;
mod step35;
mod whisper;

pub use family::{
    ActivationLimit, Alibi, AttentionScale, AttentionSpec, AxesOrder, ClassifierHead, Direction, EmbeddingNorm,
    EmbeddingScale, ExpertPlacement, Family, FeedForward, Gate, Generation, LogitScale, MediaRows, Mixer, NormKind,
    Norms, Output, QkNorm, QkNormKind, Recurrent, Residual, RopePairs, Rotation, RoutingSpec, Section, SharedExpert,
    Temperature, UnwindowedRotary, Values, WindowedRope, Windows, YarnMultiplier, YarnRamp,
};

use super::error::ModelError;
use crate::checkpoint::Checkpoint;

/// All families.
pub const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma3n::FAMILY,
    &qwen2moe::FAMILY,
    &qwen3moe::FAMILY,
    &glm4moe::FAMILY,
    &gpt_oss::FAMILY,
    &deepseek2::FAMILY,
    &deepseek32::FAMILY,
    &deepseek4::FAMILY,
    &glm_dsa::FAMILY,
    &glm5_next::FAMILY,
    &dbrx::FAMILY,
    &llama4::FAMILY,
    &gemma4::FAMILY,
    &granite::FAMILY,
    &granitemoe::FAMILY,
    &phi3::FAMILY,
    &mistral3::FAMILY,
    &mistral4::FAMILY,
    &olmo2::FAMILY,
    &olmoe::FAMILY,
    &smollm3::FAMILY,
    &cohere2::FAMILY,
    &cohere2moe::FAMILY,
    &command_r::FAMILY,
    &glm4::FAMILY,
    &exaone4::FAMILY,
    &seed_oss::FAMILY,
    &nemotron::FAMILY,
    &starcoder2::FAMILY,
    &phi2::FAMILY,
    &stablelm::FAMILY,
    &ernie4_5::FAMILY,
    &ernie4_5_moe::FAMILY,
    &paddleocr::FAMILY,
    &hunyuan_dense::FAMILY,
    &hunyuan_moe::FAMILY,
    &minimax_m2::FAMILY,
    &minimax_m3::FAMILY,
    &arcee::FAMILY,
    &dots1::FAMILY,
    &bailingmoe::FAMILY,
    &bailingmoe2::FAMILY,
    &bailingmoe3::FAMILY,
    &baichuan::FAMILY,
    &gemma::FAMILY,
    &olmo::FAMILY,
    &chatglm::FAMILY,
    &jais2::FAMILY,
    &exaone_moe::FAMILY,
    &exaone::FAMILY,
    &internlm2::FAMILY,
    &minicpm::FAMILY,
    &gptneox::FAMILY,
    &gpt2::FAMILY,
    &starcoder::FAMILY,
    &falcon::FAMILY,
    &bloom::FAMILY,
    &mpt::FAMILY,
    &granite_swa::FAMILY,
    &mellum::FAMILY,
    &hy_v3::FAMILY,
    &hy_v4::FAMILY,
    &apertus::FAMILY,
    &afmoe::FAMILY,
    &laguna::FAMILY,
    &mimo2::FAMILY,
    &step35::FAMILY,
    &diffusion_gemma::FAMILY,
    &muse_glimmer::FAMILY,
    &qwen2vl::FAMILY,
    &qwen3vl::FAMILY,
    &qwen3vlmoe::FAMILY,
    &qwen3next::FAMILY,
    &qwen35::FAMILY,
    &qwen35moe::FAMILY,
    &qwen4exp::FAMILY,
    &kimi_linear::FAMILY,
    &kimi_k3::FAMILY,
    &lfm2::FAMILY,
    &lfm2moe::FAMILY,
    &lfm3::FAMILY,
    &mamba::FAMILY,
    &mamba2::FAMILY,
    &jamba::FAMILY,
    &granitehybrid::FAMILY,
    &falcon_h1::FAMILY,
    &nemotron_h::FAMILY,
    &nemotron_h_moe::FAMILY,
    &deci::FAMILY,
    &whisper::FAMILY,
    &bert::FAMILY,
    &nomic_bert::FAMILY,
    &nomic_bert_moe::FAMILY,
    &modern_bert::FAMILY,
    &gemma_embedding::FAMILY,
    &jina_bert_v3::FAMILY,
    &eurobert::FAMILY,
    &llama_embed::FAMILY,
];

/// Draft models that compute with the residuals of another model and cannot run alone.
const DRAFTERS: &[&Family] = &[&eagle3::FAMILY];

/// The names of the supported architectures.
#[must_use]
pub fn known() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

/// The family of a file.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] when no family has the file's architecture, [`ModelError::Gguf`] when the file lacks the
/// key `general.architecture`.
pub fn of(checkpoint: &dyn Checkpoint) -> Result<&'static Family, ModelError> {
    let found = checkpoint.str("general.architecture")?;
    let is_named = |family: &&Family| family.architecture == found || family.other_names.contains(&found);
    FAMILIES.iter().chain(DRAFTERS).copied().find(is_named).ok_or_else(|| {
        let file = checkpoint.path().display().to_string();
        ModelError::UnknownArchitecture { file, found: found.to_owned(), known: known().join(", ") }
    })
}

#[cfg(test)]
mod tests {
    // The list agrees with the checkpoints that prove it and with the table for users.
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::format::gguf::{Gguf, Metadata};

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// The classes of transformers whose values the checkpoints of each architecture are compared with.
    fn classes() -> BTreeMap<String, BTreeSet<String>> {
        let mut classes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let folders =
            ["families", "embeddings", "diffusion"].map(|name| repository().join("tests/fixtures").join(name));
        for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let gguf = Gguf::open(path.with_extension("gguf")).unwrap();
            let architecture = gguf.str("general.architecture").unwrap().to_owned();
            classes.entry(architecture).or_default().insert(class_of(&path));
        }
        // It is published in directories only.
        let whisper = class_of(&repository().join("tests/fixtures/whisper/expected.json"));
        classes.entry("whisper".to_owned()).or_default().insert(whisper);
        classes
    }

    /// The class that made the expected values of a file: "transformers VERSION CLASS, float32".
    fn class_of(path: &Path) -> String {
        let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        expected["oracle"].as_str().unwrap().split([' ', ',']).nth(2).unwrap().to_owned()
    }

    #[test]
    fn every_family_has_a_checkpoint_and_a_line_in_the_table_of_models() {
        let classes = classes();
        let row = |family: &&Family| {
            let of_family =
                classes.get(family.architecture).unwrap_or_else(|| panic!("{} is unproved", family.architecture));
            let of_family: Vec<String> = of_family.iter().map(|class| format!("`{class}`")).collect();
            format!("| `{}` | {} | {} |", family.architecture, family.models, of_family.join(", "))
        };
        let expected: Vec<String> = FAMILIES.iter().map(row).collect();
        let page = std::fs::read_to_string(repository().join("docs/models.md")).unwrap();
        let table = page.lines().skip_while(|line| !line.starts_with("| architecture ")).skip(2);
        let found: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
        assert_eq!(found, expected, "docs/models.md must have these lines:\n{}\n", expected.join("\n"));
    }

    /// The names of Ollama's library and the architecture of each: `tests/fixtures/ollama_library.tsv`.
    #[test]
    fn the_page_of_models_counts_the_names_of_a_library_that_load() {
        let library = std::fs::read_to_string(repository().join("tests/fixtures/ollama_library.tsv")).unwrap();
        let names: Vec<(&str, &str)> = library.lines().map(|line| line.split_once('\t').unwrap()).collect();
        let known = known();
        let others = names.iter().filter(|(_, architecture)| !known.contains(architecture));
        let others: Vec<String> = others.map(|(name, architecture)| format!("`{name}` (`{architecture}`)")).collect();
        let expected = format!(
            "{} of {} names load. The others are {}.",
            names.len() - others.len(),
            names.len(),
            others.join(", ")
        );
        let page = std::fs::read_to_string(repository().join("docs/models.md")).unwrap();
        assert!(page.lines().any(|line| line == expected), "docs/models.md must have this line:\n{expected}\n");
    }

    #[test]
    fn every_architecture_is_listed_once() {
        let names: BTreeSet<&str> = known().into_iter().collect();
        assert_eq!(names.len(), FAMILIES.len());
    }
}
