//! Where a setting's value came from, and why a configuration is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::value::Raw;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The table of settings.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, without its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// Values that one source gives, by setting name.
pub type Given = BTreeMap<&'static str, (Raw, Origin)>;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file named by `--config` cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: this is not valid TOML: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// A key that is not in the table.
    #[error("{}:{line}: unknown setting {key:?}{}", path.display(), did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key as written, with its table.
        key: String,
        /// The most similar key.
        suggestion: Option<String>,
    },
    /// A value that the setting does not accept.
    #[error("{origin}: bad value for {key}: {reason}")]
    BadValue {
        /// Where it was given.
        origin: Origin,
        /// The setting.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory that a user without a home would use.
    #[error("HOME is not set, and other users can write to {}, which would take its place; set HOME", .0.display())]
    SharedDirectory(PathBuf),
    /// An environment variable that is not text.
    #[error("environment variable {0} is not valid UTF-8")]
    NotText(String),
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|key| format!(" (did you mean {key:?}?)")).unwrap_or_default()
}

/// The known name that is most similar to `wrong`, if one is similar enough.
pub(super) fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(wrong, name), name))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}
