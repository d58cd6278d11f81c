//! The API keys of the configuration: what a server accepts, and what our own commands send.

use super::error::CliError;
use crate::config::Config;

/// The keys of the configuration and those of the key file.
///
/// # Errors
/// [`CliError`] when the key file cannot be read or has no keys, or a key is empty.
pub fn api_keys(config: &Config) -> Result<Vec<String>, CliError> {
    let mut keys: Vec<String> = config.api_key.0.iter().map(|key| key.0.clone()).collect();
    if let Some(path) = &config.api_key_file {
        let text =
            std::fs::read_to_string(path).map_err(CliError::io(format!("read the key file {}", path.display())))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            return Err(CliError::Failed(format!("the key file {} has no keys", path.display())));
        }
    }
    if keys.iter().any(String::is_empty) {
        let advice = "an empty --api-key would accept every client; leave the flag out if that is intended";
        return Err(CliError::Usage(advice.to_owned()));
    }
    Ok(keys)
}
