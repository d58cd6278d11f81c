//! Model references: `org/repo`, `org/repo:quant`, `org/repo:safetensors`, `org/repo/file.gguf`, `ollama://name:tag`, a path, or
//! `demo`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::directory;
use super::error::HubError;
use super::gguf_names::{is_gguf, models, quant_of, shard_of};
use super::ollama::OllamaName;

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
    /// A model of a registry with Ollama's protocol.
    Ollama(OllamaName),
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The repository, as "org/repo".
    pub repo: String,
    /// The file within the repository.
    pub file: WantedFile,
}

/// The format of a model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFormat {
    /// A file, or shards of one.
    Gguf,
    /// A Hugging Face directory.
    Safetensors,
}

impl ModelFormat {
    /// What is loaded of a model with these files: the first one, or the directory that it is in.
    #[must_use]
    pub fn path(self, files: &[PathBuf]) -> &Path {
        match self {
            ModelFormat::Gguf => &files[0],
            ModelFormat::Safetensors => files[0].parent().unwrap_or(&files[0]),
        }
    }
}

impl fmt::Display for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelFormat::Gguf => "gguf",
            ModelFormat::Safetensors => "safetensors",
        })
    }
}

impl FromStr for ModelFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [ModelFormat::Gguf, ModelFormat::Safetensors];
        let found = known.into_iter().find(|format| format.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "expected gguf or safetensors".to_owned())
    }
}

/// The file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedFile {
    /// [`DEFAULT_QUANT`], or the only GGUF model of the repository; its safetensors if it has no GGUF files.
    Default,
    /// The same, but in this format only.
    Format(ModelFormat),
    /// The file with this quantization.
    Quant(String),
    /// The file with this name.
    Name(String),
}

impl fmt::Display for WantedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WantedFile::Default | WantedFile::Format(ModelFormat::Gguf) => f.write_str(DEFAULT_QUANT),
            WantedFile::Format(format) => format.fmt(f),
            WantedFile::Quant(name) | WantedFile::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            WantedFile::Default => f.write_str(&self.repo),
            WantedFile::Format(format) => write!(f, "{}:{format}", self.repo),
            WantedFile::Quant(quant) => write!(f, "{}:{quant}", self.repo),
            WantedFile::Name(name) => write!(f, "{}/{name}", self.repo),
        }
    }
}

impl ModelReference {
    /// Parses a reference. An existing file or directory with a model takes precedence over a repository of the same name.
    ///
    /// # Errors
    /// [`HubError::NoSuchFile`] for text that can only be a path, [`HubError::IsDirectory`] for another directory,
    /// [`HubError::NotAnOllamaName`] after `ollama://`, and [`HubError::NotAReference`] for any other text.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        if OllamaName::is_meant_by(text) {
            return OllamaName::parse(text).map(ModelReference::Ollama);
        }
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
    /// Parses `org/repo`, `org/repo:quant`, `org/repo:gguf`, `org/repo:safetensors` or `org/repo/file.gguf`.
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
            (None, Some(quant)) if is_word(quant) => match quant.parse() {
                Ok(format) => WantedFile::Format(format),
                Err(_) => WantedFile::Quant(quant.to_owned()),
            },
            (Some(name), None) if is_gguf(name) && name.split('/').all(is_word) => WantedFile::Name(name.to_owned()),
            _ => return None,
        };
        (is_word(org) && is_word(repo)).then(|| Wanted { repo: format!("{org}/{repo}"), file })
    }

    /// The same model in this format.
    ///
    /// # Errors
    /// [`HubError::OtherFormat`] when a file of another format is named.
    pub fn in_format(self, format: ModelFormat) -> Result<Self, HubError> {
        match self.file {
            WantedFile::Default => Ok(Wanted { file: WantedFile::Format(format), ..self }),
            WantedFile::Format(own) if own == format => Ok(self),
            WantedFile::Quant(_) | WantedFile::Name(_) if format == ModelFormat::Gguf => Ok(self),
            _ => Err(HubError::OtherFormat { reference: self.to_string(), format: format.to_string() }),
        }
    }

    /// The format of the model among `files`, which are names within the repository.
    #[must_use]
    pub fn format(&self, files: &[String]) -> ModelFormat {
        match &self.file {
            WantedFile::Format(format) => *format,
            WantedFile::Default if models(files).is_empty() && directory::has_weights(files) => {
                ModelFormat::Safetensors
            }
            _ => ModelFormat::Gguf,
        }
    }

    /// Chooses the files of the GGUF model from `files`. The first shard is first.
    ///
    /// # Errors
    /// [`HubError::NoSuchQuant`] with the available quantizations, [`HubError::PickleOnly`] or [`HubError::MissingShards`].
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
            WantedFile::Default | WantedFile::Format(_) => {
                matching(DEFAULT_QUANT).or_else(|| models.first().filter(|_| models.len() == 1))
            }
        };
        let Some(chosen) = chosen else {
            return Err(self.none(files, &models));
        };
        let expected = shard_of(chosen[0]).map_or(1, |shard| shard.count);
        if chosen.len() != expected {
            let (repo, file) = (self.repo.clone(), chosen[0].to_owned());
            return Err(HubError::MissingShards { repo, file, found: chosen.len(), expected });
        }
        Ok(chosen.iter().map(|file| (*file).to_owned()).collect())
    }

    /// Why none of these GGUF models is meant.
    fn none(&self, files: &[String], models: &[Vec<&str>]) -> HubError {
        let repo = self.repo.clone();
        let has_weights = directory::has_weights(files);
        if let Some(file) = directory::pickled(files).filter(|_| models.is_empty() && !has_weights) {
            return HubError::PickleOnly { repo, file: file.clone() };
        }
        let quants = models.iter().map(|model| quant_of(model[0]).unwrap_or_else(|| model[0].to_owned()));
        let safetensors = has_weights.then(|| ModelFormat::Safetensors.to_string());
        let available = quants.chain(safetensors).collect();
        HubError::NoSuchQuant { repo, wanted: self.file.to_string(), available }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text != ".." && text.chars().all(|c| c.is_alphanumeric() || "-_.+".contains(c))
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
        let error = choose("a/b:Q8_0", &["model.safetensors"]).unwrap_err().to_string();
        assert!(error.ends_with("it has: safetensors"), "{error}");
        let error = choose("a/b", &["README.md"]).unwrap_err().to_string();
        assert!(error.ends_with("it has: no GGUF files at all"), "{error}");
    }

    #[test]
    fn gguf_comes_before_safetensors_unless_the_reference_names_them() {
        use ModelFormat::{Gguf, Safetensors};
        let both = ["m.Q8_0.gguf", "model.safetensors"];
        let projector = ["mmproj-F16.gguf", "model.safetensors.index.json"];
        for (reference, files, format) in [
            ("a/b", &both[..], Gguf),
            ("a/b", &projector, Safetensors),
            ("a/b:GGUF", &projector, Gguf),
            ("a/b:safetensors", &both, Safetensors),
            ("a/b:Q8_0", &projector, Gguf),
            ("a/b", &["pytorch_model.bin"], Gguf),
        ] {
            assert_eq!(Wanted::parse(reference).unwrap().format(&names(files)), format, "{reference} {files:?}");
        }
        assert!(matches!(choose("a/b", &["pytorch_model.bin"]), Err(HubError::PickleOnly { .. })));
        assert_eq!(choose("a/b:gguf", &both).unwrap(), ["m.Q8_0.gguf"]);
    }

    #[test]
    fn a_format_is_added_to_a_reference_that_names_no_other() {
        let in_format = |text, format| Wanted::parse(text).unwrap().in_format(format).map(|wanted| wanted.to_string());
        assert_eq!(in_format("a/b", ModelFormat::Safetensors).unwrap(), "a/b:safetensors");
        assert_eq!(in_format("a/b:Q8_0", ModelFormat::Gguf).unwrap(), "a/b:Q8_0");
        assert!(in_format("a/b:Q8_0", ModelFormat::Safetensors).is_err());
        assert!(in_format("a/b:safetensors", ModelFormat::Gguf).is_err());
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
