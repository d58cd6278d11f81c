//! What every subcommand gets: settings, the hub, the terminal.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::error::CliError;
use super::model_name;
use super::terminal::Terminal;
use super::tuning::Tuned;
use crate::config::environment::Environment;
use crate::config::{self as configuration, Config, ConfigError, Given, Resolved};
use crate::core::error_chain::error_chain;
use crate::hub::{Hub, HubError};

/// What every subcommand gets.
#[derive(Debug, Clone)]
pub struct Context {
    /// The settings.
    pub config: Config,
    /// The configuration file that was read, if any.
    pub config_file: Option<PathBuf>,
    /// The directories in which the system looks for programs.
    pub search_path: Vec<PathBuf>,
    /// The standard streams.
    pub terminal: Terminal,
    /// What the configuration is made of, other than the environment, to read it again.
    pub source: ConfigSource,
    /// See [`Context::tuned`].
    pub(super) tuned: Arc<OnceLock<Tuned>>,
}

/// The sources of the configuration that the command line names.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    /// The file named with `--config`.
    pub file: Option<PathBuf>,
    /// The settings given as flags.
    pub given: Given,
}

impl ConfigSource {
    /// Reads the configuration.
    ///
    /// # Errors
    /// As [`configuration::resolve`].
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        configuration::resolve(self.file.clone(), &Environment::of_process(), self.given.clone())
    }
}

impl Context {
    /// The tuning of CPU kernels, measured at the first call if it is not stored.
    #[must_use]
    pub fn tuned(&self) -> &Tuned {
        self.tuned.get_or_init(|| Tuned::for_engine(&self.config, &self.terminal))
    }

    /// The sources of models.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::new(&self.config)
    }

    /// The file of a model, downloaded first if necessary. A name that no source knows is answered with one that works.
    ///
    /// # Errors
    /// [`CliError`] when the model is not found.
    pub fn locate(&self, model: &str) -> Result<PathBuf, CliError> {
        self.hub().locate(model, &self.terminal.downloads()).map_err(|error| not_found(error, model))
    }

    /// Downloads a model, even if a version of it is in the cache, and returns its file.
    ///
    /// # Errors
    /// [`CliError`] when the model is not found.
    pub fn pull(&self, model: &str) -> Result<PathBuf, CliError> {
        self.hub().pull(model, &self.terminal.downloads()).map_err(|error| not_found(error, model))
    }
}

fn not_found(error: HubError, model: &str) -> CliError {
    match (&error, model_name::suggestion(model)) {
        (HubError::NotAReference(_), Some(suggestion)) => CliError::Failed(suggestion),
        (HubError::Request { .. }, _) => {
            CliError::Failed(format!("{}; check the network, or name a .gguf file", error_chain(&error)))
        }
        _ => CliError::Hub(error),
    }
}
