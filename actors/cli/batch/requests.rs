//! A file of requests: a JSON object per line, as in OpenAI's Batch API
//! (<https://platform.openai.com/docs/api-reference/batch>).

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

/// The routes whose answer is one JSON object.
const URLS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
];

/// A request of the file.
#[derive(Debug, Deserialize)]
pub struct BatchRequest {
    /// The number of its line, from 1.
    #[serde(skip)]
    line: usize,
    /// What the answer is found by.
    pub custom_id: String,
    /// `POST`, which is the default too.
    #[serde(default)]
    method: Option<String>,
    /// The path of the route.
    pub url: String,
    /// The fields of the request.
    pub body: Map<String, Value>,
}

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
        reason: String,
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
}

impl BatchError {
    /// For `map_err` on an I/O error.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| BatchError::Io { what, path: path.to_owned(), source }
    }
}

/// The ids of all requests of a file.
///
/// # Errors
/// [`BatchError`] with the first line that is no request, or has the id of an earlier one.
pub fn check(path: &Path) -> Result<HashSet<String>, BatchError> {
    let mut ids = HashSet::new();
    for request in read(path)? {
        let BatchRequest { line, custom_id, .. } = request?;
        if let Some(custom_id) = ids.replace(custom_id) {
            let reason = format!("an earlier one has the same custom_id {custom_id:?}");
            return Err(BatchError::Line { line, path: path.to_owned(), reason });
        }
    }
    if ids.is_empty() { Err(BatchError::Empty(path.to_owned())) } else { Ok(ids) }
}

/// Reads a file of requests. Empty lines are left out.
///
/// # Errors
/// [`BatchError::Io`] when the file cannot be opened.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<BatchRequest, BatchError>> + use<>, BatchError> {
    let lines = BufReader::new(File::open(path).map_err(BatchError::io("read", path))?).lines();
    let path = path.to_owned();
    let numbered = (1..).zip(lines).filter(|(_, line)| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    Ok(numbered.map(move |(line, text)| {
        let text = text.map_err(BatchError::io("read", &path))?;
        let request = parse(&text).map_err(|reason| BatchError::Line { line, path: path.clone(), reason })?;
        Ok(BatchRequest { line, ..request })
    }))
}

fn parse(text: &str) -> Result<BatchRequest, String> {
    let request: BatchRequest = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(method) = request.method.as_deref().filter(|method| *method != "POST") {
        return Err(format!("its method is {method:?}; only \"POST\" is possible"));
    }
    if !URLS.contains(&request.url.as_str()) {
        return Err(format!("its url is {:?}; possible are {}", request.url, URLS.join(", ")));
    }
    match request.body.get("stream") {
        Some(Value::Bool(true)) => Err("a batch has no streams: leave `stream` out".to_owned()),
        _ => Ok(request),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn checked(text: &str) -> Result<HashSet<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        check(file.path()).map_err(|error| error.to_string())
    }

    fn line(id: &str, more: &str) -> String {
        format!("{{\"custom_id\": {id:?}, \"url\": \"/v1/completions\", \"body\": {{\"prompt\": \"a\"{more}}}}}")
    }

    #[test]
    fn a_file_is_requests_with_different_ids_and_empty_lines() {
        let text = format!("{}\n\n  \n{}", line("a", ""), line("b", ", \"stream\": false"));
        assert_eq!(checked(&text).unwrap(), HashSet::from(["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let get = line("a", "").replace("\"url\"", "\"method\": \"GET\", \"url\"");
        for (text, expected) in [
            (format!("{}\n\n{}", line("a", ""), line("a", "")), "line 3 of"),
            (format!("{}\n\n{}", line("a", ""), line("a", "")), "same custom_id \"a\""),
            (format!("{}\n{{\"url\": 7}}", line("a", "")), "line 2 of"),
            ("{}".to_owned(), "missing field `custom_id`"),
            (line("a", ", \"stream\": true"), "leave `stream` out"),
            (line("a", "").replace("/v1/completions", "/models/unload"), "possible are /v1/chat/completions"),
            (get, "its method is \"GET\""),
            (String::new(), "has no requests"),
        ] {
            let error = checked(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let missing = check(Path::new("/nonexistent/requests.jsonl")).unwrap_err();
        assert!(missing.to_string().contains("cannot read /nonexistent/requests.jsonl"));
    }
}
