//! The configuration file.

use std::path::Path;

use cuelight::config::{SETTINGS, of_text};

/// An accepted configuration is printed as a file that gives the same configuration, but for secrets, which are not printed.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let path = Path::new("config.toml");
    let config = match of_text(path, &text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let printed = config.to_toml();
    let again = of_text(path, &printed).unwrap_or_else(|error| panic!("{error}:\n{printed}"));
    for setting in SETTINGS.iter().filter(|setting| !setting.is_secret) {
        assert_eq!(config.toml_value(setting.name), again.toml_value(setting.name), "{}", setting.name);
    }
}
