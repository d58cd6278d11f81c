//! The name of a model for clients.

use std::path::Path;

use crate::hub::ollama::OllamaName;

/// The model's name for clients without an alias: the reference, or the name of a file or directory without `.gguf`.
#[must_use]
pub fn served_name(model: &str) -> String {
    let path = Path::new(model);
    let is_path = path.is_file() || path.join("config.json").is_file();
    let short = || model.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().filter(|name| !name.is_empty());
    let name = if is_path { short().unwrap_or(model) } else { OllamaName::without_prefix(model) };
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_the_name_for_clients() {
        assert_eq!(served_name("demo"), "demo");
        assert_eq!(served_name("org/repo:Q8_0"), "org/repo:Q8_0");
        let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        let stem = file.path().file_stem().unwrap().to_str().unwrap();
        assert_eq!(served_name(file.path().to_str().unwrap()), stem);
    }
}
