//! Names of models in other programs, and the references for the same models here.

/// Models of Ollama's library and repositories with GGUF files of the same model.
const OLLAMA_MODELS: &[(&str, &str)] = &[
    ("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    ("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF"),
    ("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF"),
    ("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF"),
    ("gemma3:270m", "unsloth/gemma-3-270m-it-GGUF"),
    ("gemma3:1b", "unsloth/gemma-3-1b-it-GGUF"),
    ("gemma3:4b", "unsloth/gemma-3-4b-it-GGUF"),
    ("gemma3:12b", "unsloth/gemma-3-12b-it-GGUF"),
    ("gemma3:27b", "unsloth/gemma-3-27b-it-GGUF"),
    ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF"),
    ("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"),
    ("qwen2.5:0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF"),
    ("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF"),
    ("qwen2.5:3b", "bartowski/Qwen2.5-3B-Instruct-GGUF"),
    ("qwen2.5:7b", "bartowski/Qwen2.5-7B-Instruct-GGUF"),
    ("qwen2.5:14b", "bartowski/Qwen2.5-14B-Instruct-GGUF"),
    ("qwen2.5:32b", "bartowski/Qwen2.5-32B-Instruct-GGUF"),
    ("qwen2.5-coder:7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF"),
    ("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF"),
    ("qwen3:1.7b", "unsloth/Qwen3-1.7B-GGUF"),
    ("qwen3:4b", "unsloth/Qwen3-4B-GGUF"),
    ("qwen3:8b", "unsloth/Qwen3-8B-GGUF"),
    ("qwen3:14b", "unsloth/Qwen3-14B-GGUF"),
    ("qwen3:30b", "unsloth/Qwen3-30B-A3B-GGUF"),
    ("qwen3:32b", "unsloth/Qwen3-32B-GGUF"),
    ("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF"),
    ("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF"),
    ("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF"),
];

/// What Ollama runs for a name without a tag.
const OLLAMA_LATEST: &[(&str, &str)] = &[
    ("llama3.1", "8b"),
    ("llama3.2", "3b"),
    ("llama3.3", "70b"),
    ("gemma2", "9b"),
    ("gemma3", "4b"),
    ("gpt-oss", "20b"),
    ("mistral", "7b"),
    ("qwen2.5", "7b"),
    ("qwen2.5-coder", "7b"),
    ("qwen3", "8b"),
    ("smollm2", "1.7b"),
];

/// Web addresses of the hub that users copy with a repository.
const HUB_PREFIXES: [&str; 4] = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];

/// A sentence with the reference to use instead of this name; `None` if the name is not similar to a known one.
#[must_use]
pub fn suggestion(name: &str) -> Option<String> {
    let reference = HUB_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    if let Some(reference) = reference.filter(|reference| reference.contains('/')) {
        return Some(format!("{name} is an address of the hub; write only the repository: {reference}"));
    }
    if let Some(repository) = repository(name) {
        return Some(format!("{name} is a name of Ollama's library; the same model here is {repository}"));
    }
    looks_like_ollama(name).then(|| {
        let search = name.split(':').next().unwrap_or(name);
        format!(
            "{name} looks like a name of Ollama's library; name a repository with GGUF files instead, like \
             org/repo:Q4_K_M (https://huggingface.co/models?search={search}+gguf lists some), or ollama://{name} for a \
             configured registry"
        )
    })
}

fn repository(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let (family, tag) = name.split_once(':').unwrap_or((&name, "latest"));
    let latest = || OLLAMA_LATEST.iter().find(|(known, _)| *known == family).map(|(_, tag)| *tag);
    let tag = if tag == "latest" { latest()? } else { tag };
    let wanted = format!("{family}:{tag}");
    // Ollama's tags may end with a variant: "llama3.2:1b-instruct-q4_K_M".
    let is_wanted =
        |known: &str| wanted.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    OLLAMA_MODELS.iter().find(|(known, _)| is_wanted(known)).map(|(_, repository)| *repository)
}

/// Whether it is written like `family:7b`.
fn looks_like_ollama(name: &str) -> bool {
    let Some((family, tag)) = name.split_once(':') else { return false };
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_word(family) && is_word(tag)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::reference::Wanted;

    #[test]
    fn every_suggested_repository_is_a_reference() {
        for (name, repository) in OLLAMA_MODELS {
            assert!(Wanted::parse(repository).is_some(), "{repository}");
            assert!(suggestion(name).unwrap().ends_with(repository), "{name}");
        }
        for (family, tag) in OLLAMA_LATEST {
            assert_eq!(repository(family), repository(&format!("{family}:{tag}")), "{family}");
            assert!(repository(family).is_some(), "{family}");
        }
    }

    #[test]
    fn ollama_tags_may_name_a_variant() {
        let expected = Some("bartowski/Llama-3.2-1B-Instruct-GGUF");
        assert_eq!(repository("llama3.2:1b"), expected);
        assert_eq!(repository("Llama3.2:1b-instruct-q4_K_M"), expected);
        assert_eq!(repository("llama3.2:11b"), None);
        assert!(suggestion("newmodel:7b").unwrap().contains("search=newmodel+gguf"));
    }

    #[test]
    fn an_address_of_the_hub_is_shortened_to_its_repository() {
        assert!(suggestion("hf.co/org/repo:Q8_0").unwrap().ends_with(": org/repo:Q8_0"));
        assert!(suggestion("https://huggingface.co/org/repo").unwrap().ends_with(": org/repo"));
        assert_eq!(suggestion("nonsense"), None);
    }
}
