//! The file that names the servers, in the form that Claude Desktop, Cursor, VS Code and other programs share.
//!
//! The file belongs to all of them, so fields that only others know are ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::placeholders::{Lookup, replaced};

/// A server of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// Its name in the file.
    pub name: String,
    /// How to reach it.
    pub transport: Transport,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process that reads and writes messages on its standard streams.
    Process {
        /// The program: a path, or a name that is searched for.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables that it gets, next to those of this process.
        env: BTreeMap<String, String>,
        /// The directory in which it runs.
        cwd: Option<PathBuf>,
    },
    /// A service that takes messages over HTTP.
    Http {
        /// Its address.
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
}

/// Why the file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is not JSON.
    #[error("{} is not JSON: {source}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// It names no server.
    #[error("{} has no servers: it must be an object with `mcpServers`, which has an object for each server", path.display())]
    NoServers {
        /// The file.
        path: PathBuf,
    },
    /// The entry of a server is wrong.
    #[error("{}: the server {name}: {reason}", path.display())]
    Server {
        /// The file.
        path: PathBuf,
        /// The server.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the servers of a file, in its order. Those that it disables are left out.
///
/// # Errors
/// [`ConfigFileError`] that names the file, and the server if it is about one.
pub fn read(path: &Path, variable: Lookup<'_>) -> Result<Vec<ServerSpec>, ConfigFileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigFileError::Unreadable { path: path.to_owned(), source })?;
    parse(path, &text, variable)
}

fn parse(path: &Path, text: &str, variable: Lookup<'_>) -> Result<Vec<ServerSpec>, ConfigFileError> {
    let path = path.to_owned();
    let file: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|source| ConfigFileError::NotJson { path: path.clone(), source })?;
    // VS Code's name is `servers`.
    let entries = ["mcpServers", "servers"].into_iter().find_map(|key| file.get(key)?.as_object());
    let mut specs = Vec::new();
    for (name, entry) in entries.into_iter().flatten() {
        let wrong = |reason| ConfigFileError::Server { path: path.clone(), name: name.clone(), reason };
        specs.extend(server(name, entry, variable).map_err(wrong)?);
    }
    if specs.is_empty() { Err(ConfigFileError::NoServers { path }) } else { Ok(specs) }
}

/// What is read of an entry.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type", alias = "transport")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    disabled: bool,
    #[serde(default = "yes")]
    enabled: bool,
}

fn yes() -> bool {
    true
}

fn server(name: &str, entry: &Value, variable: Lookup<'_>) -> Result<Option<ServerSpec>, String> {
    let entry = Entry::deserialize(entry).map_err(|error| error.to_string())?;
    if entry.disabled || !entry.enabled {
        return Ok(None);
    }
    let transport = transport(entry, variable)?;
    Ok(Some(ServerSpec { name: name.to_owned(), transport }))
}

fn transport(entry: Entry, variable: Lookup<'_>) -> Result<Transport, String> {
    let text = |text: String| replaced(&text, variable);
    let texts = |map: BTreeMap<String, String>| -> Result<BTreeMap<_, _>, String> {
        map.into_iter().map(|(key, value)| Ok((key, text(value)?))).collect()
    };
    let kind = entry.kind.as_deref();
    let is_http = match kind {
        None => entry.command.is_none(),
        Some("stdio") => false,
        Some("http" | "streamable-http" | "streamable_http" | "streamableHttp") => true,
        Some(other) => return Err(format!("the transport {other:?} is not supported; use \"stdio\" or \"http\"")),
    };
    if is_http {
        let url = entry.url.ok_or("it needs a `command`, or a `url`")?;
        return Ok(Transport::Http { url: http_url(text(url)?)?, headers: texts(entry.headers)? });
    }
    let command = entry.command.filter(|command| !command.is_empty()).ok_or("it needs a `command`")?;
    Ok(Transport::Process {
        command: text(command)?,
        args: entry.args.into_iter().map(text).collect::<Result<_, _>>()?,
        env: texts(entry.env)?,
        cwd: entry.cwd.map(text).transpose()?.map(PathBuf::from),
    })
}

fn http_url(url: String) -> Result<String, String> {
    match reqwest::Url::parse(&url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => Ok(url),
        _ => Err(format!("{url:?} is not an address that begins with http:// or https://")),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ServerSpec>, String> {
        let variable = |name: &str| (name == "TOKEN").then(|| "secret".to_owned());
        parse(Path::new("tools.json"), text, &variable).map_err(|error| error.to_string())
    }

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn both_transports_and_both_top_keys_are_read() {
        let servers = r#"{
            "files": {"command": "files-server", "args": ["--root", "."], "env": {"KEY": "${TOKEN}"}, "cwd": "/srv", "autoApprove": []},
            "issues": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
            "off": {"command": "x", "disabled": true},
            "also off": {"type": "sse", "url": "${UNSET}", "enabled": false}
        }"#;
        for key in ["mcpServers", "servers"] {
            let specs = read(&format!(r#"{{"inputs": [], "{key}": {servers}}}"#)).unwrap();
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!(names, ["files", "issues"]);
            let process = Transport::Process {
                command: "files-server".to_owned(),
                args: vec!["--root".to_owned(), ".".to_owned()],
                env: map("KEY", "secret"),
                cwd: Some(PathBuf::from("/srv")),
            };
            assert_eq!(specs[0].transport, process);
            let headers = map("Authorization", "Bearer secret");
            assert_eq!(specs[1].transport, Transport::Http { url: "https://example.org/mcp".to_owned(), headers });
        }
    }

    #[test]
    fn an_address_without_a_type_is_http() {
        let specs = read(r#"{"mcpServers": {"a": {"url": "http://localhost:1/mcp"}}}"#).unwrap();
        assert!(matches!(&specs[0].transport, Transport::Http { .. }));
    }

    #[test]
    fn what_is_wrong_is_named_with_the_file_and_the_server() {
        for (entry, part) in [
            (r#"{"type": "sse", "url": "http://x/"}"#, "the transport \"sse\" is not supported"),
            (r#"{"type": "http"}"#, "a `url`"),
            (r#"{}"#, "it needs a `command`, or a `url`"),
            (r#"{"type": "stdio", "url": "http://x/"}"#, "it needs a `command`"),
            (r#"{"url": "ftp://x/"}"#, "http:// or https://"),
            (r#"{"command": 5}"#, "invalid type"),
            (r#"{"command": "x", "env": {"A": "${UNSET}"}}"#, "the environment variable UNSET is not set"),
            (r#""x""#, "invalid type"),
        ] {
            let error = read(&format!(r#"{{"mcpServers": {{"files": {entry}}}}}"#)).unwrap_err();
            assert!(error.starts_with("tools.json: the server files: ") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_file_without_servers_is_refused() {
        for text in
            ["{}", "[]", r#"{"mcpServers": {}}"#, r#"{"mcpServers": {"a": {"command": "x", "disabled": true}}}"#]
        {
            let error = read(text).unwrap_err();
            assert!(error.contains("tools.json has no servers"), "{error}");
        }
        assert!(read("{").unwrap_err().contains("tools.json is not JSON"));
    }
}
