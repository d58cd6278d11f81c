//! Names of models in a registry: `ollama://[HOST/][NAMESPACE/]MODEL[:TAG]`.

use std::fmt;
use std::path::PathBuf;

use crate::hub::error::HubError;

/// What a name begins with.
const PREFIX: &str = "ollama://";
/// The namespace of models that a registry publishes itself.
const LIBRARY: &str = "library";
/// The tag of a name without one.
const LATEST: &str = "latest";
/// What separates the parts of a name in that of a file. No part has it.
const IN_FILES: char = '+';
/// What the name of a file ends with.
const EXTENSION: &str = ".gguf";
/// Most characters of a part of a name.
const LONGEST_PART: usize = 80;

/// The name of a model in a registry. Each part is safe as the name of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OllamaName {
    /// The registry, with its port; `None` for the configured one.
    pub host: Option<String>,
    /// Whose model it is.
    pub namespace: String,
    /// The model.
    pub model: String,
    /// Its variant.
    pub tag: String,
}

impl OllamaName {
    /// Whether a reference is meant as such a name.
    #[must_use]
    pub fn is_meant_by(reference: &str) -> bool {
        reference.starts_with(PREFIX)
    }

    /// The name in a reference, as Ollama's own programs write it; other references as they are.
    #[must_use]
    pub fn without_prefix(reference: &str) -> &str {
        reference.strip_prefix(PREFIX).unwrap_or(reference)
    }

    /// Parses a reference that begins with `ollama://`.
    ///
    /// # Errors
    /// [`HubError::NotAnOllamaName`].
    pub fn parse(reference: &str) -> Result<Self, HubError> {
        let wrong = || HubError::NotAnOllamaName(reference.to_owned());
        let text = reference.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let parts: Vec<&str> = text.split('/').collect();
        let (host, namespace, last) = match parts[..] {
            [model] => (None, LIBRARY, model),
            [namespace, model] => (None, namespace, model),
            [host, namespace, model] => (Some(host), namespace, model),
            _ => return Err(wrong()),
        };
        let (model, tag) = last.split_once(':').unwrap_or((last, LATEST));
        let is_valid = host.is_none_or(is_host) && [namespace, model, tag].into_iter().all(is_part);
        let [namespace, model, tag] = [namespace, model, tag].map(str::to_owned);
        let name = OllamaName { host: host.map(str::to_owned), namespace, model, tag };
        is_valid.then_some(name).ok_or_else(wrong)
    }

    /// The name that a file in a directory of models has: `model:tag.gguf`, or `namespace+model:tag.gguf`.
    #[must_use]
    pub fn file_name(&self) -> String {
        let text = self.without_host().to_string();
        format!("{}{EXTENSION}", Self::without_prefix(&text).replace('/', &IN_FILES.to_string()))
    }

    /// The name, without a host, that such a file has.
    #[must_use]
    pub fn of_file_name(file: &str) -> Option<Self> {
        let text = file.strip_suffix(EXTENSION)?.replace(IN_FILES, "/");
        let name = Self::parse(&format!("{PREFIX}{text}")).ok()?;
        (name.host.is_none() && name.file_name() == file).then_some(name)
    }

    /// The name as its users write it: `model:tag`, or the whole reference where that could be another one.
    #[must_use]
    pub fn short(&self) -> String {
        let text = self.to_string();
        if text.matches('/').count() > 2 { text } else { Self::without_prefix(&text).to_owned() }
    }

    /// The name in any registry.
    #[must_use]
    pub fn without_host(&self) -> Self {
        OllamaName { host: None, ..self.clone() }
    }

    /// The name at a registry.
    #[must_use]
    pub fn at(self, host: String) -> Self {
        OllamaName { host: Some(host), ..self }
    }

    /// The same name for people who use this registry, where it needs no host.
    #[must_use]
    pub fn for_users_of(self, host: Option<&str>) -> Self {
        let is_known = host.is_some() && self.host.as_deref() == host;
        OllamaName { host: self.host.filter(|_| !is_known), ..self }
    }

    /// Whether it names the model that `other` names. A name without a host is that of any registry.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        let is_same_host = self.host.as_ref().is_none_or(|host| other.host.as_ref() == Some(host));
        is_same_host && [&self.namespace, &self.model, &self.tag] == [&other.namespace, &other.model, &other.tag]
    }

    /// The path below the address of a registry.
    #[must_use]
    pub fn url_path(&self) -> String {
        format!("v2/{}/{}", self.namespace, self.model)
    }

    /// The path of its manifest below the folder of manifests. `None` without a host.
    #[must_use]
    pub fn manifest_path(&self) -> Option<PathBuf> {
        Some([self.host.as_ref()?, &self.namespace, &self.model, &self.tag].iter().collect())
    }
}

impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        match &self.host {
            Some(host) => write!(f, "{host}/{}/", self.namespace)?,
            None if self.namespace != LIBRARY => write!(f, "{}/", self.namespace)?,
            None => {}
        }
        write!(f, "{}:{}", self.model, self.tag)
    }
}

/// Neither empty nor the name of a parent folder, because it begins with a letter or a digit.
fn is_part(text: &str) -> bool {
    begins_well(text) && text.len() <= LONGEST_PART && text.chars().all(|c| is_letter(c) || "-_.".contains(c))
}

fn is_host(text: &str) -> bool {
    begins_well(text) && text.len() <= 255 && text.chars().all(|c| is_letter(c) || "-.:".contains(c))
}

fn begins_well(text: &str) -> bool {
    text.starts_with(is_letter)
}

fn is_letter(character: char) -> bool {
    character.is_ascii_alphanumeric()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_library_and_a_latest_tag() {
        for (text, shown) in [
            ("ollama://llama3.2", "ollama://llama3.2:latest"),
            ("ollama://llama3.2:1b-instruct-q4_K_M", "ollama://llama3.2:1b-instruct-q4_K_M"),
            ("ollama://library/llama3.2:1b", "ollama://llama3.2:1b"),
            ("ollama://someone/model:8b", "ollama://someone/model:8b"),
            ("ollama://localhost:5000/library/m:1", "ollama://localhost:5000/library/m:1"),
        ] {
            let name = OllamaName::parse(text).unwrap();
            assert_eq!(name.to_string(), shown);
            assert_eq!(OllamaName::parse(shown).unwrap(), name);
        }
    }

    #[test]
    fn a_name_that_could_leave_the_folder_is_refused() {
        let long = format!("ollama://{}", "a".repeat(81));
        for text in [
            "llama3.2",
            "ollama://",
            "ollama://m:",
            "ollama://:1b",
            "ollama://..",
            "ollama://../m",
            "ollama://a/../../m:1",
            "ollama://a/..:1",
            "ollama://m:..",
            "ollama://m:a/b:c",
            "ollama://h/n/m/x",
            "ollama:///etc/passwd",
            "ollama://m%2e",
            "ollama://m:1?x",
            "ollama://a b",
            "ollama://m\\..\\x",
            "ollama://h@x/n/m",
            &long,
        ] {
            assert!(matches!(OllamaName::parse(text), Err(HubError::NotAnOllamaName(_))), "{text}");
        }
    }

    #[test]
    fn a_file_is_named_by_the_name_without_the_host() {
        for (text, file, short) in [
            ("ollama://llama3.2", "llama3.2:latest.gguf", "llama3.2:latest"),
            ("ollama://reg:1/library/m:1b", "m:1b.gguf", "ollama://reg:1/library/m:1b"),
            ("ollama://someone/m:8b", "someone+m:8b.gguf", "ollama://someone/m:8b"),
        ] {
            let name = OllamaName::parse(text).unwrap();
            assert_eq!((name.file_name().as_str(), name.short().as_str()), (file, short));
            assert_eq!(OllamaName::of_file_name(file), Some(name.without_host()));
        }
        for file in ["m.gguf", "m:1b", "h+n+m:1.gguf", "..:1.gguf", "library+m:1.gguf", "a b:1.gguf"] {
            assert_eq!(OllamaName::of_file_name(file), None, "{file}");
        }
    }

    #[test]
    fn a_host_is_left_out_for_those_who_use_it() {
        let name = OllamaName::parse("ollama://m:1").unwrap();
        let known = name.clone().at("reg:1".to_owned());
        assert!(name.matches(&known) && !known.matches(&name));
        assert_eq!(known.clone().for_users_of(Some("reg:1")), name);
        assert_eq!(known.clone().for_users_of(None), known);
        assert_eq!(known.manifest_path().unwrap(), ["reg:1", "library", "m", "1"].iter().collect::<PathBuf>());
    }
}
