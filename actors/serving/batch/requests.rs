//! A file of requests: a JSON object per line, as in OpenAI's Batch API
//! (<https://platform.openai.com/docs/api-reference/batch>).

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{BatchError, RequestError};
use crate::serving::error::clip;

/// The routes whose answer is one JSON object.
pub const URLS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
];

/// Longest id of a request in bytes.
const LONGEST_ID: usize = 512;

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
    /// The fields of the request, as they are written: parsed, they would take many times the memory.
    pub body: Box<RawValue>,
}

/// What the requests of a file may be.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Most bytes of a line.
    pub line_bytes: usize,
    /// Most requests.
    pub requests: usize,
    /// The only route. `None`: any of [`URLS`].
    pub endpoint: Option<String>,
}

/// The ids of all requests of a file.
///
/// # Errors
/// [`BatchError`] with the first line that is no request, or has the id of an earlier one.
pub fn check(path: &Path, rules: &Rules) -> Result<HashSet<String>, BatchError> {
    let mut ids = HashSet::new();
    for request in read(path, rules.line_bytes)? {
        let request = request?;
        let line = request.line;
        add(&mut ids, request, rules).map_err(|reason| BatchError::Line { line, path: path.to_owned(), reason })?;
    }
    if ids.is_empty() { Err(BatchError::Empty(path.to_owned())) } else { Ok(ids) }
}

fn add(ids: &mut HashSet<String>, request: BatchRequest, rules: &Rules) -> Result<(), RequestError> {
    let BatchRequest { custom_id, url, .. } = request;
    if let Some(endpoint) = rules.endpoint.clone().filter(|endpoint| *endpoint != url) {
        return Err(RequestError::Endpoint { url, endpoint });
    }
    if ids.len() == rules.requests {
        return Err(RequestError::Many(rules.requests));
    }
    match ids.replace(custom_id) {
        Some(custom_id) => Err(RequestError::Duplicate(clip(&custom_id))),
        None => Ok(()),
    }
}

/// Reads a file of requests, whose lines have at most `line_bytes`. Empty lines are left out.
///
/// # Errors
/// [`BatchError::Io`] when the file cannot be opened.
pub fn read(path: &Path, line_bytes: usize) -> Result<Requests, BatchError> {
    let reader = BufReader::new(File::open(path).map_err(BatchError::io("read", path))?);
    Ok(Requests { reader, path: path.to_owned(), line: 0, line_bytes })
}

/// The requests of a file.
#[derive(Debug)]
pub struct Requests {
    reader: BufReader<File>,
    path: PathBuf,
    line: usize,
    line_bytes: usize,
}

impl Requests {
    /// The next line that is not empty, without its end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, BatchError> {
        let most = u64::try_from(self.line_bytes).unwrap_or(u64::MAX).saturating_add(2);
        loop {
            let mut line = Vec::new();
            self.line += 1;
            let read = self.reader.by_ref().take(most).read_until(b'\n', &mut line);
            let read = read.map_err(BatchError::io("read", &self.path))?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 == most && !line.ends_with(b"\n") {
                return Err(self.wrong(RequestError::Long(self.line_bytes)));
            }
            let text = line.trim_ascii_end().len();
            line.truncate(text);
            if !line.trim_ascii_start().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn parse(&self, line: &[u8]) -> Result<BatchRequest, BatchError> {
        let parsed = if line.len() > self.line_bytes { Err(RequestError::Long(self.line_bytes)) } else { parse(line) };
        Ok(BatchRequest { line: self.line, ..parsed.map_err(|reason| self.wrong(reason))? })
    }

    fn wrong(&self, reason: RequestError) -> BatchError {
        BatchError::Line { line: self.line, path: self.path.clone(), reason }
    }
}

impl Iterator for Requests {
    type Item = Result<BatchRequest, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_line() {
            Ok(line) => line.map(|line| self.parse(&line)),
            Err(error) => Some(Err(error)),
        }
    }
}

fn parse(line: &[u8]) -> Result<BatchRequest, RequestError> {
    let request: BatchRequest = serde_json::from_slice(line).map_err(|error| RequestError::json(&error))?;
    if !(1..=LONGEST_ID).contains(&request.custom_id.len()) {
        return Err(RequestError::Id(LONGEST_ID));
    }
    if let Some(method) = request.method.as_deref().filter(|method| *method != "POST") {
        return Err(RequestError::Method(clip(method)));
    }
    if !URLS.contains(&request.url.as_str()) {
        return Err(RequestError::Url { url: clip(&request.url), possible: URLS.join(", ") });
    }
    check_body(&request.body)?;
    Ok(request)
}

/// Checks that a body is an object and asks for no stream.
///
/// # Errors
/// [`RequestError`] when it is not or does.
pub fn check_body(body: &RawValue) -> Result<(), RequestError> {
    #[derive(Deserialize)]
    struct Streaming<'a> {
        #[serde(borrow)]
        stream: Option<&'a RawValue>,
    }
    let body = body.get();
    if !body.starts_with('{') {
        return Err(RequestError::Body);
    }
    let streaming: Streaming = serde_json::from_str(body).map_err(|error| RequestError::json(&error))?;
    match streaming.stream.map(RawValue::get) {
        Some("true") => Err(RequestError::Stream),
        _ => Ok(()),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn rules() -> Rules {
        Rules { line_bytes: 200, requests: 3, endpoint: None }
    }

    fn checked_by(rules: &Rules, text: &str) -> Result<HashSet<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        check(file.path(), rules).map_err(|error| error.to_string())
    }

    fn checked(text: &str) -> Result<HashSet<String>, String> {
        checked_by(&rules(), text)
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
            (line("a", "").replace("{\"prompt\": \"a\"}", "7"), "its body is not a JSON object"),
            (line("", ""), "custom_id must have 1 to 512 bytes"),
            (format!("{}\n{}", line("a", ""), line("b", &" ".repeat(200))), "line 2 of"),
            (line("b", &" ".repeat(200)), "longer than 200 bytes"),
            (["a", "b", "c", "d"].map(|id| line(id, "")).join("\n"), "at most 3 requests"),
            (String::new(), "has no requests"),
        ] {
            let error = checked(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let missing = check(Path::new("/nonexistent/requests.jsonl"), &rules()).unwrap_err();
        assert!(missing.to_string().contains("cannot read /nonexistent/requests.jsonl"));
    }

    #[test]
    fn a_batch_of_one_endpoint_has_no_other() {
        let rules = Rules { endpoint: Some("/v1/embeddings".to_owned()), ..rules() };
        let error = checked_by(&rules, &line("a", "")).unwrap_err();
        assert!(error.contains("but the endpoint of the batch is \"/v1/embeddings\""), "{error}");
    }
}
