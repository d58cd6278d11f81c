//! Model references: `org/repo`, `org/repo:quant`, `org/repo/file.gguf`, a path, or `demo`.

use std::fmt;
use std::path::PathBuf;

use super::error::HubError;

/// The default quantization: small, and close to the full model.
pub const DEFAULT_QUANT: &str = "Q4_K_M";

/// A model as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelReference {
    /// The built-in demo model.
    Demo,
    /// A file on this machine, or a directory with a model.
    Path(PathBuf),
    /// A file of a repository on the hub.
    Repository(Wanted),
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The repository, as "org/repo".
    pub repo: String,
    /// The file within the repository.
    pub file: WantedFile,
}

/// The file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedFile {
    /// [`DEFAULT_QUANT`], or the only model of the repository.
    Default,
    /// The file with this quantization.
    Quant(String),
    /// The file with this name.
    Name(String),
}

impl fmt::Display for WantedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WantedFile::Default => f.write_str(DEFAULT_QUANT),
            WantedFile::Quant(name) | WantedFile::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            WantedFile::Default => f.write_str(&self.repo),
            WantedFile::Quant(quant) => write!(f, "{}:{quant}", self.repo),
            WantedFile::Name(name) => write!(f, "{}/{name}", self.repo),
        }
    }
}

impl ModelReference {
    /// Parses a reference. An existing file or directory with a model takes precedence over a repository of the same name.
    ///
    /// # Errors
    /// [`HubError::NoSuchFile`] for text that can only be a path, [`HubError::IsDirectory`] for another directory, and
    /// [`HubError::NotAReference`] for any other text.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let path = PathBuf::from(text);
        if path.is_file() {
            return Ok(ModelReference::Path(path));
        }
        if text == "demo" {
            return Ok(ModelReference::Demo);
        }
        if path.join("config.json").is_file() {
            return Ok(ModelReference::Path(path));
        }
        if path.is_dir() {
            return Err(HubError::IsDirectory(path));
        }
        let looks_like_path = text.starts_with(['/', '.', '~', '\\']) || (is_gguf(text) && text.split('/').count() < 3);
        if looks_like_path {
            return Err(HubError::NoSuchFile(path));
        }
        Wanted::parse(text).map(ModelReference::Repository).ok_or_else(|| HubError::NotAReference(text.to_owned()))
    }
}

impl Wanted {
    /// Parses `org/repo`, `org/repo:quant` or `org/repo/file.gguf`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (path, quant) = match text.split_once(':') {
            Some((path, quant)) => (path, Some(quant)),
            None => (text, None),
        };
        let mut parts = path.splitn(3, '/');
        let (org, repo, name) = (parts.next()?, parts.next()?, parts.next());
        let file = match (name, quant) {
            (None, None) => WantedFile::Default,
            (None, Some(quant)) if is_word(quant) => WantedFile::Quant(quant.to_owned()),
            (Some(name), None) if is_gguf(name) && name.split('/').all(is_word) => WantedFile::Name(name.to_owned()),
            _ => return None,
        };
        (is_word(org) && is_word(repo)).then(|| Wanted { repo: format!("{org}/{repo}"), file })
    }

    /// Chooses the files of the model from `files`, which are names within the repository. The first shard is first.
    ///
    /// # Errors
    /// [`HubError::NoSuchQuant`] with the available quantizations, or [`HubError::MissingShards`].
    pub fn choose(&self, files: &[String]) -> Result<Vec<String>, HubError> {
        let models = models(files);
        let matching = |quant: &str| {
            let exact =
                models.iter().find(|model| quant_of(model[0]).is_some_and(|found| found.eq_ignore_ascii_case(quant)));
            // Unsloth's dynamic quantizations have the prefix `UD-`, which users may omit.
            exact.or_else(|| {
                let prefixed = format!("UD-{quant}");
                models
                    .iter()
                    .find(|model| quant_of(model[0]).is_some_and(|found| found.eq_ignore_ascii_case(&prefixed)))
            })
        };
        let chosen = match &self.file {
            WantedFile::Name(name) => {
                models.iter().find(|model| model.iter().any(|file| file.eq_ignore_ascii_case(name)))
            }
            WantedFile::Quant(quant) => matching(quant),
            WantedFile::Default => matching(DEFAULT_QUANT).or_else(|| models.first().filter(|_| models.len() == 1)),
        };
        let Some(chosen) = chosen else {
            let available =
                models.iter().map(|model| quant_of(model[0]).unwrap_or_else(|| model[0].to_owned())).collect();
            return Err(HubError::NoSuchQuant { repo: self.repo.clone(), wanted: self.file.to_string(), available });
        };
        let expected = shard_of(chosen[0]).map_or(1, |shard| shard.count);
        if chosen.len() != expected {
            let (repo, file) = (self.repo.clone(), chosen[0].to_owned());
            return Err(HubError::MissingShards { repo, file, found: chosen.len(), expected });
        }
        Ok(chosen.iter().map(|file| (*file).to_owned()).collect())
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text != ".." && text.chars().all(|c| c.is_alphanumeric() || "-_.+".contains(c))
}

/// Whether a file name ends in `.gguf`.
#[must_use]
pub fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// The language models among the files of a repository, each with its shards in order.
///
/// Image projectors and importance matrices are also GGUF files, but not models to run.
fn models(files: &[String]) -> Vec<Vec<&str>> {
    let mut names: Vec<&str> = files.iter().map(String::as_str).filter(|name| is_gguf(name)).collect();
    names.retain(|name| {
        let lower = name.to_ascii_lowercase();
        !lower.contains("mmproj") && !lower.contains("imatrix")
    });
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|name| (*name).to_owned()).collect()
    }

    fn choose(reference: &str, files: &[&str]) -> Result<Vec<String>, HubError> {
        Wanted::parse(reference).unwrap().choose(&names(files))
    }

    #[test]
    fn references_name_a_repository_a_quantization_or_a_file() {
        let file = |text| Wanted::parse(text).map(|wanted| wanted.file);
        assert_eq!(file("org/repo"), Some(WantedFile::Default));
        assert_eq!(file("org/repo:q8_0"), Some(WantedFile::Quant("q8_0".into())));
        assert_eq!(file("org/repo/sub/x.gguf"), Some(WantedFile::Name("sub/x.gguf".into())));
        for wrong in [
            "",
            "repo",
            "org/",
            "/repo",
            "org/repo:",
            "org/repo/x.bin",
            "org/../x.gguf/..",
            "a b/c",
            "org/repo/x.gguf:Q4_0",
        ] {
            assert_eq!(Wanted::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn text_that_can_only_be_a_path_is_reported_as_a_missing_file() {
        for path in ["model.gguf", "dir/model.gguf", "./model", "/no/such"] {
            assert!(matches!(ModelReference::parse(path), Err(HubError::NoSuchFile(_))), "{path}");
        }
        assert!(matches!(ModelReference::parse("llama"), Err(HubError::NotAReference(_))));
        assert!(matches!(ModelReference::parse("demo"), Ok(ModelReference::Demo)));
    }

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
    fn the_quantization_is_found_in_any_case() {
        let files = ["README.md", "m.Q4_0.gguf", "m.Q4_K_M.gguf", "mmproj-Q8_0.gguf"];
        assert_eq!(choose("a/b", &files).unwrap(), ["m.Q4_K_M.gguf"]);
        assert_eq!(choose("a/b:q4_0", &files).unwrap(), ["m.Q4_0.gguf"]);
        assert_eq!(choose("a/b/M.q4_0.GGUF", &files).unwrap(), ["m.Q4_0.gguf"]);
    }

    #[test]
    fn the_error_for_a_missing_quantization_lists_the_available_ones() {
        let error = choose("a/b:Q8_0", &["m.Q4_0.gguf", "m.Q6_K.gguf", "mmproj-Q8_0.gguf"]).unwrap_err().to_string();
        assert_eq!(error, "a/b has no GGUF Q8_0; it has: Q4_0, Q6_K");
        let error = choose("a/b", &["model.safetensors"]).unwrap_err().to_string();
        assert!(error.ends_with("it has: no GGUF files at all"), "{error}");
    }

    #[test]
    fn a_single_model_needs_no_quantization() {
        assert_eq!(choose("a/b", &["model.gguf"]).unwrap(), ["model.gguf"]);
        assert!(choose("a/b", &["m.Q8_0.gguf", "m.Q6_K.gguf"]).is_err());
    }

    #[test]
    fn shards_are_returned_together_in_order() {
        let files = ["m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"];
        let chosen = choose("a/b", &files).unwrap();
        assert_eq!(chosen, ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"]);
        assert!(matches!(choose("a/b:Q8_0", &files), Err(HubError::MissingShards { found: 1, expected: 2, .. })));
    }
}
