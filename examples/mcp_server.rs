//! A server of tools for `cuelight run --mcp`, over its standard streams (Model Context Protocol), without a library.
//!
//! Its tools read a text file below a directory, tell the time, and wait. A file that names it:
//!
//! ```json
//! {"mcpServers": {"files": {"command": "target/release/examples/mcp_server", "args": ["/home/ada/notes"]}}}
//! ```

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// The version of the protocol that it speaks.
const PROTOCOL: &str = "2025-06-18";

fn main() -> io::Result<()> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    serve(&directory)
}

/// Answers the messages of standard input until its end. Each line is a message.
pub fn serve(directory: &Path) -> io::Result<()> {
    let out = Arc::new(Mutex::new(io::stdout()));
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        // A message without a number wants no answer.
        let Some(id) = message.get("id").cloned() else { continue };
        let (out, directory) = (out.clone(), directory.to_owned());
        // A slow tool does not delay the others.
        std::thread::spawn(move || {
            let mut answer = json!({ "jsonrpc": "2.0", "id": id });
            match result(&message, &directory) {
                Ok(result) => answer["result"] = result,
                Err(error) => answer["error"] = error,
            }
            if let Ok(mut out) = out.lock() {
                // The client may be gone.
                let _ = writeln!(out, "{answer}").and_then(|()| out.flush());
            }
        });
    }
    Ok(())
}

fn result(message: &Value, directory: &Path) -> Result<Value, Value> {
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => Ok(json!({
            "protocolVersion": PROTOCOL,
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "example", "version": "1" },
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({ "tools": tools() })),
        "tools/call" => Ok(called(&message["params"], directory)),
        method => Err(json!({ "code": -32601, "message": format!("there is no method {method:?}") })),
    }
}

fn tools() -> Value {
    let tool = |name: &str, description: &str, properties: Value, required: &[&str]| {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "name": name, "description": description, "inputSchema": schema, "annotations": { "readOnlyHint": true } })
    };
    let path = json!({ "path": { "type": "string", "description": "The file, below the directory." } });
    json!([
        tool("read", "Reads a text file.", path, &["path"]),
        tool("time", "Tells the time in seconds since 1970, in UTC.", json!({}), &[]),
        tool("wait", "Waits, to try out slow tools.", json!({ "seconds": { "type": "number" } }), &["seconds"]),
    ])
}

/// The result of a call. A failure of the tool is a result, too, so that the model can react to it.
fn called(params: &Value, directory: &Path) -> Value {
    let arguments = &params["arguments"];
    let outcome = match params["name"].as_str().unwrap_or_default() {
        "read" => read(directory, arguments["path"].as_str().unwrap_or_default()),
        "time" => Ok(seconds_since_1970()),
        "wait" => {
            let seconds = arguments["seconds"].as_f64().unwrap_or_default().clamp(0.0, 3600.0);
            std::thread::sleep(Duration::from_secs_f64(seconds));
            Ok("done".to_owned())
        }
        name => Err(format!("there is no tool {name:?}")),
    };
    let is_error = outcome.is_err();
    let text = outcome.unwrap_or_else(|reason| reason);
    json!({ "content": [{ "type": "text", "text": text }], "isError": is_error })
}

/// Reads a file below the directory. Links and `..` may lead elsewhere, so the resolved path decides.
fn read(directory: &Path, path: &str) -> Result<String, String> {
    let (root, file) = (directory.canonicalize(), directory.join(path).canonicalize());
    let (Ok(root), Ok(file)) = (root, file) else { return Err(format!("there is no file {path:?}")) };
    if !file.starts_with(root) {
        return Err(format!("{path:?} is not below the directory"));
    }
    std::fs::read_to_string(file).map_err(|error| format!("{path:?} cannot be read: {error}"))
}

fn seconds_since_1970() -> String {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
}
