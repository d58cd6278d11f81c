//! Why a file of requests or answers cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::error::Category;

/// Why a file of requests or answers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The file cannot be read or written.
    #[error("cannot {what} {path}", path = .path.display())]
    Io {
        /// "read", "write" or "open".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line is no request.
    #[error("line {line} of {path} is no request of a batch: {reason}", path = .path.display())]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: RequestError,
    },
    /// A file without a request.
    #[error("{path} has no requests", path = .0.display())]
    Empty(PathBuf),
    /// The file of answers has something else.
    #[error("line {line} of {path} is no answer to these requests{reason}; name another file for the answers", path = .path.display())]
    OtherFile {
        /// The number of the line, from 1.
        line: usize,
        /// The file.
        path: PathBuf,
        /// Why, after a colon, or nothing.
        reason: String,
    },
    /// Another process appends to the file of answers.
    #[error("another process is writing {path}", path = .0.display())]
    InUse(PathBuf),
    /// A bug.
    #[error("work on a batch failed: {0}")]
    Panicked(String),
}

impl BatchError {
    /// For `map_err` on an I/O error.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| BatchError::Io { what, path: path.to_owned(), source }
    }
}

/// What is wrong with a request of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not JSON, or a field is missing or of another type.
    #[error("{0}")]
    Json(String),
    /// Its body is no object.
    #[error("its body is not a JSON object")]
    Body,
    /// Its method is another one.
    #[error("its method is {0:?}; only \"POST\" is possible")]
    Method(String),
    /// Its route is not for batches.
    #[error("its url is {url:?}; possible are {possible}")]
    Url {
        /// Its route.
        url: String,
        /// The routes for batches.
        possible: String,
    },
    /// Its route is not the one of its batch.
    #[error("its url is {url:?}, but the endpoint of the batch is {endpoint:?}")]
    Endpoint {
        /// Its route.
        url: String,
        /// The route of the batch.
        endpoint: String,
    },
    /// It asks for a stream.
    #[error("a batch has no streams: leave `stream` out")]
    Stream,
    /// Its id is that of an earlier request.
    #[error("an earlier one has the same custom_id {0:?}")]
    Duplicate(String),
    /// Its id is empty or long.
    #[error("its custom_id must have 1 to {0} bytes")]
    Id(usize),
    /// The line is longer than a request may be.
    #[error("it is longer than {0} bytes")]
    Long(usize),
    /// There are too many requests before it.
    #[error("a batch has at most {0} requests")]
    Many(usize),
}

impl RequestError {
    /// What serde says of a line, without the number of the line, which is 1 because each is read by itself.
    pub fn json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let reason = text.rsplit_once(" at line ").map_or(&*text, |(reason, _)| reason);
        RequestError::Json(match error.classify() {
            Category::Data => reason.to_owned(),
            _ => format!("it is not JSON: {reason} at column {}", error.column()),
        })
    }

    /// A word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            RequestError::Json(_) | RequestError::Body => "invalid_json_line",
            RequestError::Method(_) => "invalid_method",
            RequestError::Url { .. } | RequestError::Endpoint { .. } => "invalid_url",
            RequestError::Stream => "invalid_request",
            RequestError::Duplicate(_) => "duplicate_custom_id",
            RequestError::Id(_) => "invalid_custom_id",
            RequestError::Long(_) => "line_too_long",
            RequestError::Many(_) => "too_many_requests",
        }
    }

    /// The field that is wrong, if it is one.
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            RequestError::Json(_) | RequestError::Long(_) | RequestError::Many(_) => None,
            RequestError::Body => Some("body"),
            RequestError::Method(_) => Some("method"),
            RequestError::Url { .. } | RequestError::Endpoint { .. } => Some("url"),
            RequestError::Stream => Some("body.stream"),
            RequestError::Duplicate(_) | RequestError::Id(_) => Some("custom_id"),
        }
    }
}
