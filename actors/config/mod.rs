//! Every setting of Cuelight in one table, and its resolution: defaults, then a TOML file, then the environment, then flags.
//!
//! - [`settings`]: the table. A row names, describes and types a setting and gives its default. The key in the file, the
//!   environment variable, the flag, the help text and the output of `cuelight config` all come from that row.
//! - [`value`]: the types of settings; [`address`]: those of addresses
//! - [`file`](mod@file), [`environment`], [`flags`]: the three sources of values
//! - [`home`]: the user's directories
//! - [`error`]: why a configuration is refused
//!
//! The result is one [`Config`], built once at start and passed down. No other code reads the environment.

mod address;
pub mod environment;
mod error;
mod file;
pub mod flags;
mod home;
mod settings;
mod value;

use std::path::{Path, PathBuf};

pub use self::address::{CollectorUrl, EventsAddress, HttpUrl, PageOrigin};
use self::environment::Environment;
pub use self::error::{ConfigError, Given, Origin};
pub use self::home::Home;
pub use self::settings::{Config, SETTINGS, Section, Setting};
pub use self::value::{
    ByteSize, CalibrateMode, Color, LogFormat, LogLevel, Probability, Raw, Secret, Secrets, Temperature, ValueKind,
};

/// A section's settings as a Markdown table, for `docs/configuration.md`.
#[must_use]
pub fn markdown(section: Section) -> String {
    let defaults = Config::defaults(&Environment::default().home());
    let mut text = "| Key | Variable | Flag | Default | Meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
        let flag = match (setting.has_flag, setting.kind) {
            (false, _) => "-".to_owned(),
            (true, ValueKind::Switch) => format!("`--{}`", setting.flag()),
            (true, _) => format!("`--{} {}`", setting.flag(), setting.value_name),
        };
        let variables = std::iter::once(setting.variable()).chain(setting.also.iter().map(|name| (*name).to_owned()));
        let variables: Vec<String> = variables.map(|name| format!("`{name}`")).collect();
        let default = match defaults.toml_value(setting.name) {
            // Directories depend on the user's home.
            Some(value) if value.contains('/') => "see below".to_owned(),
            Some(value) => format!("`{value}`"),
            None => "unset".to_owned(),
        };
        let (name, doc) = (setting.name, setting.doc.trim());
        text.push_str(&format!("| `{name}` | {} | {flag} | {default} | {doc} |\n", variables.join(", ")));
    }
    text
}

/// A configuration and warnings about it.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// One sentence each.
    pub warnings: Vec<String>,
}

/// The configuration that a file's text gives on top of the defaults. Errors show `path` as the file.
///
/// # Errors
/// [`ConfigError`] as for [`resolve`].
pub fn of_text(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::defaults(&Environment::default().home());
    config.apply(file::parse(path, text)?)?;
    Ok(config)
}

/// Builds the configuration: defaults, then the file, then the environment, then flags.
///
/// `explicit_file`, or else the file that the environment names, must exist. Without them, the user's
/// `cuelight/config.toml` is read if it exists.
///
/// # Errors
/// [`ConfigError`] for an unreadable or wrong file, an unknown key, a bad value anywhere, or directories that other users
/// can write.
pub fn resolve(
    explicit_file: Option<PathBuf>,
    environment: &Environment,
    flags: Given,
) -> Result<Resolved, ConfigError> {
    let home = environment.home();
    let mut config = Config::defaults(&home);
    let path = explicit_file.or_else(|| environment.config_file()).or_else(|| {
        let path = home.config("cuelight")?.join("config.toml");
        path.is_file().then_some(path)
    });
    if let Some(path) = &path {
        config.apply(file::read(path)?)?;
    }
    config.apply(environment.given()?)?;
    config.apply(flags)?;
    check_directories(&config)?;
    Ok(Resolved { config, file: path, warnings: environment.misspelt_variables() })
}

/// Refuses directories for a user without a home that another user could have filled.
fn check_directories(config: &Config) -> Result<(), ConfigError> {
    let substitute = home::substitute_home();
    let mut used = [&config.cache_dir, &config.hf_home, &config.history_file].into_iter();
    if used.any(|path| path.starts_with(&substitute)) && !home::is_private(&substitute) {
        return Err(ConfigError::SharedDirectory(substitute));
    }
    Ok(())
}
