//! The process's environment, read here and nowhere else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{ConfigError, Given, Origin, Raw, SETTINGS, nearest};

/// What Cuelight's own variables begin with.
pub const PREFIX: &str = "CUELIGHT_";

/// Variables of others that are used to find directories.
const DIRECTORIES: &[&str] = &["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];

/// Environment variables, taken once.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
}

/// The person's directories, by the XDG rules.
#[derive(Debug, Clone)]
pub struct Home {
    config: PathBuf,
    cache: PathBuf,
    state: PathBuf,
}

impl Environment {
    /// The variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Environment { variables }
    }

    /// The directories these variables name.
    #[must_use]
    pub fn home(&self) -> Home {
        let [home, config, cache, state] = [0, 1, 2, 3].map(|index| {
            let value = self.variables.get(DIRECTORIES[index])?;
            let path = PathBuf::from(value);
            // The XDG rules say that a relative path there is to be ignored.
            path.is_absolute().then_some(path)
        });
        let home = home.unwrap_or_else(std::env::temp_dir);
        Home {
            config: config.unwrap_or_else(|| home.join(".config")),
            cache: cache.unwrap_or_else(|| home.join(".cache")),
            state: state.unwrap_or_else(|| home.join(".local/state")),
        }
    }

    /// The folders in which the system looks for programs.
    #[must_use]
    pub fn search_path(&self) -> Vec<PathBuf> {
        self.variables.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default()
    }

    /// The settings that are set here.
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
                if let Some(raw) = meaning(name, text) {
                    given.insert(setting.name, (raw, Origin::Variable(name.to_owned())));
                    break;
                }
            }
        }
        Ok(given)
    }

    /// A sentence for each `CUELIGHT_…` variable that sets nothing and looks like a misspelt one.
    /// Others may belong to scripts around us.
    pub(super) fn misspelt_variables(&self) -> Vec<String> {
        let known: Vec<String> = SETTINGS.iter().map(|setting| setting.name.to_uppercase()).collect();
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

/// What a variable's text says; `None` when it is as good as unset.
fn meaning(name: &str, text: &str) -> Option<Raw> {
    match name {
        _ if text.is_empty() => None,
        // Any value at all means no colour, whatever it says.
        "NO_COLOR" => Some(Raw::Text("never".to_owned())),
        _ => Some(Raw::Text(text.to_owned())),
    }
}

impl Home {
    /// Where `program` keeps its configuration.
    #[must_use]
    pub fn config(&self, program: impl AsRef<Path>) -> PathBuf {
        self.config.join(program)
    }

    /// Where `program` keeps what can be made again.
    #[must_use]
    pub fn cache(&self, program: impl AsRef<Path>) -> PathBuf {
        self.cache.join(program)
    }

    /// Where `program` keeps what it remembers.
    #[must_use]
    pub fn state(&self, program: impl AsRef<Path>) -> PathBuf {
        self.state.join(program)
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        Environment { variables }
    }
}
