//! What the names that clients send mean.

use std::fmt;

use crate::hub::ollama::OllamaName;
use crate::hub::reference::Wanted;
use crate::models::StoreError;

/// A model that a client names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// Files of the hub.
    Hub(Wanted),
    /// A model of the configured registry, without its host.
    Registry(OllamaName),
}

impl Named {
    /// Reads a name, for a server whose registry is `registry`. `org/repo` is always one of the hub. A host is ignored, unless it
    /// is that of the registry, or the name is certainly one of another registry.
    ///
    /// # Errors
    /// [`StoreError::NotAReference`], or [`StoreError::OtherRegistry`], because clients do not choose whom the server asks.
    pub fn parse(name: &str, registry: Option<&str>) -> Result<Self, StoreError> {
        // The name is in the answer and in the log.
        let clipped = || name.chars().take(100).collect();
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let first = plain.split_once('/').map(|(first, _)| first);
        if OllamaName::is_meant_by(name) || first.is_none() || first == registry {
            let parsed = OllamaName::parse(&format!("ollama://{}", OllamaName::without_prefix(name)));
            let parsed = parsed.ok().filter(|_| registry.is_some());
            let parsed = parsed.ok_or_else(|| StoreError::NotAReference(clipped()))?;
            return match &parsed.host {
                Some(host) if Some(host.as_str()) != registry => Err(StoreError::OtherRegistry(clipped())),
                _ => Ok(Named::Registry(parsed.without_host())),
            };
        }
        let after_host = || plain.split_once('/').filter(|(host, _)| is_host(host)).map(|(_, rest)| rest);
        let wanted = Wanted::parse(plain).or_else(|| Wanted::parse(after_host()?));
        wanted.map(Named::Hub).ok_or_else(|| StoreError::NotAReference(clipped()))
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Hub(wanted) => wanted.fmt(f),
            Named::Registry(name) => f.write_str(&name.short()),
        }
    }
}

/// Whether a text looks like the name of a host on a network.
fn is_host(text: &str) -> bool {
    text.contains('.') && text.split('.').all(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(name: &str, registry: Option<&str>) -> Result<String, StoreError> {
        let named = Named::parse(name, registry)?;
        assert_eq!(Named::parse(&named.to_string(), registry), Ok(named.clone()), "{name}");
        Ok(named.to_string())
    }

    #[test]
    fn a_name_is_one_of_the_hub_with_or_without_a_host() {
        for registry in [None, Some("reg.example:5000")] {
            for (name, expected) in [
                ("org/repo", "org/repo"),
                ("org/repo:latest", "org/repo"),
                ("org/repo:Q8_0", "org/repo:Q8_0"),
                ("hub.example/org/repo", "org/repo"),
                ("hub.example/org/repo:Q8_0", "org/repo:Q8_0"),
                ("org.a/repo/dir/file.gguf", "org.a/repo/dir/file.gguf"),
            ] {
                assert_eq!(meaning(name, registry).as_deref(), Ok(expected), "{name}");
            }
        }
    }

    #[test]
    fn a_name_is_one_of_the_registry_if_there_is_one() {
        let registry = Some("reg.example:5000");
        for (name, expected) in [
            ("llama3.2", "llama3.2:latest"),
            ("llama3.2:1b", "llama3.2:1b"),
            ("demo", "demo:latest"),
            ("ollama://m", "m:latest"),
            ("ollama://someone/m:8b", "ollama://someone/m:8b"),
            ("reg.example:5000/library/m:1", "m:1"),
            ("reg.example:5000/someone/m", "ollama://someone/m:latest"),
            ("ollama://reg.example:5000/library/m", "m:latest"),
        ] {
            assert_eq!(meaning(name, registry).as_deref(), Ok(expected), "{name}");
            let without = meaning(name, None);
            // A name with a host is then one of the hub.
            let is_of_hub = without.as_ref().is_ok_and(|_| name.starts_with("reg."));
            assert!(is_of_hub || matches!(without, Err(StoreError::NotAReference(_))), "{name}: {without:?}");
        }
        let other = meaning("ollama://10.0.0.1:80/library/m:1", registry);
        assert!(matches!(other, Err(StoreError::OtherRegistry(_))), "{other:?}");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "/a/b.gguf",
            "../a/b",
            "../../a/b",
            "a/../b.gguf",
            "./a/b",
            "http://a.b/c/d",
            "..",
            "a b",
            "m:",
            "ollama://..",
            "ollama://a/../m",
            "reg/../m",
            "reg/a/b/c",
        ] {
            for registry in [None, Some("reg")] {
                let refused = meaning(name, registry);
                assert!(matches!(refused, Err(StoreError::NotAReference(_))), "{name}: {refused:?}");
            }
        }
    }
}
