//! The process's environment variables. No other file reads them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::error::{ConfigError, Given, Origin, nearest};
use super::home::{Home, substitute_home};
use super::settings::{PREFIX, SETTINGS};
use super::value::Raw;

/// Standard variables that name the user's directories.
const DIRECTORIES: &[&str] = &["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];

/// The variable that names the configuration file, without [`PREFIX`].
const CONFIG_FILE: &str = "CONFIG";

/// Variables that name proxies, in capitals. Downloads use both spellings.
const PROXIES: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

/// A copy of the environment variables.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
}

impl Environment {
    /// The variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Environment { variables }
    }

    /// The user's directories.
    #[must_use]
    pub fn home(&self) -> Home {
        let [home, config, cache, state] = [0, 1, 2, 3].map(|index| {
            let value = self.variables.get(DIRECTORIES[index])?;
            let path = PathBuf::from(value);
            // The XDG specification requires that relative paths are ignored.
            path.is_absolute().then_some(path)
        });
        let below = |folder| home.clone().unwrap_or_else(substitute_home).join(folder);
        Home {
            config: config.or_else(|| Some(home.as_ref()?.join(".config"))),
            cache: cache.unwrap_or_else(|| below(".cache")),
            state: state.unwrap_or_else(|| below(".local/state")),
        }
    }

    /// The configuration file that a variable names.
    #[must_use]
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        let value = self.variables.get(&format!("{PREFIX}{CONFIG_FILE}")).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    }

    /// The directories that the system searches for programs.
    #[must_use]
    pub fn search_path(&self) -> Vec<PathBuf> {
        self.variables.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default()
    }

    /// The value of a variable that another file names; `None` if it is not set, or is not text.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name)?.to_str()
    }

    /// The variables that hold secrets of Cuelight, which programs that it starts need not know.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let secret = SETTINGS.iter().filter(|setting| setting.is_secret);
        let names = secret.flat_map(|setting| {
            std::iter::once(setting.variable()).chain(setting.also.iter().map(|name| (*name).to_owned()))
        });
        names.filter(|name| self.variables.contains_key(name)).collect()
    }

    /// The variables that name proxies, with their values.
    #[must_use]
    pub fn proxies(&self) -> Vec<(String, String)> {
        let is_proxy = |name: &str| PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(name));
        let found = self.variables.iter().filter(|(name, value)| is_proxy(name) && !value.is_empty());
        found.map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned())).collect()
    }

    /// The settings that environment variables give.
    ///
    /// # Errors
    /// [`ConfigError::NotText`].
    pub(super) fn given(&self) -> Result<Given, ConfigError> {
        let mut given = Given::new();
        for setting in SETTINGS {
            let own = setting.variable();
            let names = std::iter::once(own.as_str()).chain(setting.also.iter().copied());
            for name in names {
                let Some(value) = self.variables.get(name) else { continue };
                let text = value.to_str().ok_or_else(|| ConfigError::NotText(name.to_owned()))?;
                if let Some(raw) = value_of(name, text) {
                    given.insert(setting.name, (raw, Origin::Variable(name.to_owned())));
                    break;
                }
            }
        }
        Ok(given)
    }

    /// A warning for each unknown `CUELIGHT_…` variable whose name is similar to a setting's. Other unknown names may belong
    /// to the user's scripts.
    pub(super) fn misspelt_variables(&self) -> Vec<String> {
        let settings = SETTINGS.iter().map(|setting| setting.name.to_uppercase());
        let known: Vec<String> = settings.chain([CONFIG_FILE.to_owned()]).collect();
        let names = self.variables.keys().filter_map(|name| name.strip_prefix(PREFIX));
        names
            .filter(|name| !known.iter().any(|known| known == name))
            .filter_map(|name| Some((name, nearest(name, known.iter().map(String::as_str))?)))
            .map(|(name, near)| {
                format!("environment variable {PREFIX}{name} sets nothing (did you mean {PREFIX}{near}?)")
            })
            .collect()
    }
}

/// The value that a variable's text gives; `None` for an empty text.
fn value_of(name: &str, text: &str) -> Option<Raw> {
    match name {
        _ if text.is_empty() => None,
        // Any value means no colour.
        "NO_COLOR" => Some(Raw::Text("never".to_owned())),
        // A terminal without colours. The names of others say nothing about what the user wants.
        "TERM" => (text == "dumb").then(|| Raw::Text("never".to_owned())),
        _ => Some(Raw::Text(text.to_owned())),
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        Environment { variables }
    }
}
