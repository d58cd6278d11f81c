//! What the names of GGUF files say: the quantization, and the shards that belong together.

/// Whether a file name ends in `.gguf`.
#[must_use]
pub fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// The language models among the files of a repository, each with its shards in order.
///
/// Projector files and importance matrices are also GGUF files, but not models to run.
pub(super) fn models(files: &[String]) -> Vec<Vec<&str>> {
    let mut names: Vec<&str> = files.iter().map(String::as_str).filter(|name| is_gguf(name)).collect();
    names.retain(|name| !is_projector(name) && !name.to_ascii_lowercase().contains("imatrix"));
    names.sort_unstable();
    let mut models: Vec<Vec<&str>> = Vec::new();
    for name in names {
        let continues = |model: &Vec<&str>| match (shard_of(model[0]), shard_of(name)) {
            (Some(first), Some(this)) => first.stem == this.stem && first.count == this.count,
            _ => false,
        };
        match models.last_mut().filter(|model| continues(model)) {
            Some(model) => model.push(name),
            None => models.push(vec![name]),
        }
    }
    models
}

/// Whether a GGUF file is a projector file and no language model, by its name.
#[must_use]
pub fn is_projector(name: &str) -> bool {
    is_gguf(name) && name.to_ascii_lowercase().contains("mmproj")
}

/// The projector file among files that is preferred: F16, which loses nothing that is seen in answers and is half as large as F32.
#[must_use]
pub fn best_projector(files: &[String]) -> Option<&str> {
    const ORDER: [&str; 5] = ["F16", "FP16", "BF16", "Q8_0", "F32"];
    let rank = |name: &str| {
        let quant = quant_of(name).unwrap_or_default();
        (ORDER.iter().position(|known| *known == quant).unwrap_or(ORDER.len()), name.len())
    };
    let names = files.iter().map(String::as_str).filter(|name| is_projector(name));
    names.min_by(|one, other| rank(one).cmp(&rank(other)).then_with(|| one.cmp(other)))
}

/// A file name of a shard, split into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard<'a> {
    /// The name before the number.
    pub stem: &'a str,
    /// Number of the shard, from 1.
    pub number: usize,
    /// Number of shards.
    pub count: usize,
}

/// Parses `…-00001-of-00003.gguf`.
#[must_use]
pub fn shard_of(name: &str) -> Option<Shard<'_>> {
    let stem = is_gguf(name).then(|| &name[..name.len() - ".gguf".len()])?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some(Shard { stem, number: digits(number)?, count: digits(count)? })
}

/// The quantization in a file name: "Q4_K_M", "UD-Q4_K_XL", "BF16".
#[must_use]
pub fn quant_of(name: &str) -> Option<String> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let stem =
        shard_of(file).map_or_else(|| file.get(..file.len().saturating_sub(5)).unwrap_or(file), |shard| shard.stem);
    let words: Vec<&str> = stem.split(['-', '.']).collect();
    let index = words.iter().rposition(|word| is_quant(word))?;
    let dynamic = index > 0 && words[index - 1].eq_ignore_ascii_case("UD");
    let quant = words[index].to_ascii_uppercase();
    Some(if dynamic { format!("UD-{quant}") } else { quant })
}

fn is_quant(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let numbered =
        |prefix: &str| word.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    matches!(word.as_str(), "F32" | "F16" | "FP16" | "BF16")
        || ["Q", "IQ", "TQ", "MXFP", "NVFP"].into_iter().any(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizations_are_read_from_common_file_names() {
        for (name, quant) in [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
            ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
            ("BF16/model-BF16-00001-of-00002.gguf", "BF16"),
            ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
            ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ] {
            assert_eq!(quant_of(name).as_deref(), Some(quant), "{name}");
        }
        assert_eq!(quant_of("qwen.gguf"), None);
    }

    #[test]
    fn the_half_precision_projector_is_preferred() {
        let best = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            best_projector(&names).map(str::to_owned)
        };
        let all = ["m.Q4_0.gguf", "mmproj-m-f32.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f16.gguf", "mmproj-m-BF16.gguf"];
        assert_eq!(best(&all).as_deref(), Some("mmproj-m-f16.gguf"));
        assert_eq!(best(&all[..3]).as_deref(), Some("mmproj-m-Q8_0.gguf"));
        assert_eq!(best(&["m-mmproj.gguf"]).as_deref(), Some("m-mmproj.gguf"));
        assert_eq!(best(&["m.F16.gguf", "mmproj-f16.safetensors"]), None);
    }
}
