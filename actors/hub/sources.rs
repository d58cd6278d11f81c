//! The configured sources of models.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::Cache;
use super::ollama::OllamaStore;
use crate::config::Config;

/// Time limit for a hub that accepts connections but does not respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The name of the hub in messages when no endpoint is configured. The library knows its address.
const PUBLIC_HUB: &str = "the hub";

/// The configured sources of models.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(super) cache: Cache,
    pub(super) endpoint: Option<String>,
    pub(super) token: Option<String>,
    pub(super) offline: bool,
    /// Whether projector files are downloaded with their models.
    pub(super) projectors: bool,
    pub(super) registry: Option<String>,
    pub(super) ollama: OllamaStore,
    pub(super) demo_dir: PathBuf,
    pub(super) response_timeout: Duration,
}

impl Hub {
    /// The sources of a configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let token = config.hf_token.as_ref().map(|token| token.0.clone());
        Hub {
            cache: Cache::new(config.hf_home.join("hub")),
            endpoint: config.hf_endpoint.clone().map(|url| url.0),
            token: token.or_else(|| stored_token(&config.hf_home)),
            offline: config.offline,
            projectors: !config.no_mmproj,
            registry: config.ollama_registry.clone(),
            ollama: OllamaStore::new(config.ollama_models.clone().unwrap_or_else(|| config.cache_dir.join("ollama"))),
            demo_dir: config.cache_dir.join("demo"),
            response_timeout: RESPONSE_TIMEOUT,
        }
    }

    /// The cache, which is shared with other programs.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The models of Ollama's registries on this machine.
    #[must_use]
    pub fn ollama(&self) -> &OllamaStore {
        &self.ollama
    }

    /// The address of the hub, or what to call the public one.
    #[must_use]
    pub fn name(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| PUBLIC_HUB.to_owned())
    }

    /// Whether requests carry a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }
}

/// The token that the hub's command line tool has stored.
fn stored_token(hf_home: &Path) -> Option<String> {
    let token = std::fs::read_to_string(hf_home.join("token")).ok()?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
