//! Why a command failed, and the exit code for it.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use crate::config::ConfigError;
use crate::hub::HubError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A wrong setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A wrong combination of arguments.
    #[error("{0}")]
    Usage(String),
    /// The model was not found.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Another failure, described by one sentence.
    #[error("{0}")]
    Failed(String),
    /// An error of another module, printed as it is.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
    /// A file or a stream could not be read or written.
    #[error("cannot {what}")]
    Io {
        /// Completes "cannot …": "read the prompt from FILE".
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// Wraps an error whose message needs no addition.
    pub fn other(error: impl Error + Send + Sync + 'static) -> Self {
        CliError::Other(Box::new(error))
    }

    /// For `map_err` on an I/O error: `what` completes "cannot …".
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| CliError::Io { what: what.into(), source }
    }

    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            CliError::Config(_) | CliError::Usage(_) => 2,
            CliError::Interrupted => 130,
            _ => 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error_chain::error_chain;

    #[test]
    fn each_cause_is_printed_once() {
        let cause = io::Error::other("the disk is full");
        let error = CliError::Io { what: "write x".into(), source: cause };
        assert_eq!(error_chain(&error), "cannot write x: the disk is full");
        assert_eq!(error_chain(&CliError::other(error)), "cannot write x: the disk is full");
    }
}
