//! All servers: started together, and their tools under names that models can use.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use rmcp::model::{CallToolResult, JsonObject, Tool};
use serde_json::{Value, json};

use super::config_file::ServerSpec;
use super::connection::Connection;
pub use super::connection::StartOptions;
use super::error::{CallError, ServerError};
use super::tool_name::ToolNames;

/// How long a server may take to start and to list its tools.
pub const START_LIMIT: Duration = Duration::from_secs(30);

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    /// The name that the model gets.
    pub for_model: String,
    /// The name of its server in the file.
    pub server: String,
    /// Its name on the server.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub parameters: Value,
    /// Whether its server says that it changes nothing.
    pub is_read_only: bool,
}

impl ServerTool {
    fn new(names: &mut ToolNames, server: &str, tool: &Tool) -> Self {
        ServerTool {
            for_model: names.add(server, &tool.name),
            server: server.to_owned(),
            name: tool.name.clone().into_owned(),
            description: tool.description.as_ref().map(|text| text.clone().into_owned()),
            parameters: json!(*tool.input_schema),
            is_read_only: tool.annotations.as_ref().and_then(|hints| hints.read_only_hint) == Some(true),
        }
    }
}

/// A server and its connection; `None` while it cannot be started again.
#[derive(Debug)]
struct Server {
    spec: ServerSpec,
    connection: Option<Connection>,
}

/// The servers of a file.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
    options: StartOptions,
    tools: Vec<ServerTool>,
}

impl Servers {
    /// Starts all servers at the same time.
    ///
    /// # Errors
    /// [`ServerError`] of the first that fails; the others are ended.
    pub async fn start(specs: Vec<ServerSpec>, options: StartOptions) -> Result<Self, ServerError> {
        let open = async |spec: ServerSpec| {
            let connection = Some(Connection::open(&spec, &options).await?);
            Ok(Server { spec, connection })
        };
        let servers = try_join_all(specs.into_iter().map(open)).await?;
        let mut this = Servers { servers, options, tools: Vec::new() };
        this.name_tools();
        Ok(this)
    }

    /// Starts servers again that have ended, and lists tools again that have changed. Returns a sentence for each.
    pub async fn refresh(&mut self) -> Vec<String> {
        let options = &self.options;
        let notes = join_all(self.servers.iter_mut().map(|server| server.refresh(options))).await;
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        if !notes.is_empty() {
            self.name_tools();
        }
        notes
    }

    /// The names of the servers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.spec.name.as_str())
    }

    /// The tools of all servers, server by server.
    #[must_use]
    pub fn tools(&self) -> &[ServerTool] {
        &self.tools
    }

    /// The tool that the model knows by this name.
    #[must_use]
    pub fn find(&self, for_model: &str) -> Option<&ServerTool> {
        self.tools.iter().find(|tool| tool.for_model == for_model)
    }

    /// Calls a tool. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`CallError`] when there is no result.
    pub async fn call(
        &self,
        tool: &ServerTool,
        arguments: JsonObject,
        limit: Duration,
    ) -> Result<CallToolResult, CallError> {
        let server = self.servers.iter().find(|server| server.spec.name == tool.server);
        let connection = server.and_then(|server| server.connection.as_ref()).ok_or(CallError::ServerEnded)?;
        connection.call(&tool.name, arguments, limit).await
    }

    /// Ends all servers.
    pub async fn stop(self) {
        join_all(self.servers.into_iter().filter_map(|server| server.connection).map(Connection::close)).await;
    }

    fn name_tools(&mut self) {
        let mut names = ToolNames::default();
        let of_server = |server: &Server| {
            let tools = server.connection.iter().flat_map(|connection| &connection.tools);
            tools.map(|tool| ServerTool::new(&mut names, &server.spec.name, tool)).collect::<Vec<_>>()
        };
        self.tools = self.servers.iter().flat_map(of_server).collect();
    }
}

impl Server {
    /// What changed, in one sentence.
    async fn refresh(&mut self, options: &StartOptions) -> Option<String> {
        let name = &self.spec.name;
        match self.connection.as_mut().filter(|connection| !connection.is_closed()) {
            Some(connection) => match connection.update().await {
                Ok(false) => None,
                Ok(true) => Some(format!("the tools of the MCP server {name} have changed")),
                Err(reason) => Some(format!("the MCP server {name}: {reason}")),
            },
            None => {
                self.connection = None;
                match Connection::open(&self.spec, options).await {
                    Ok(connection) => {
                        self.connection = Some(connection);
                        Some(format!("the MCP server {name} had ended and was started again"))
                    }
                    Err(error) => Some(format!("{error}; its tools are left out")),
                }
            }
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(all(test, unix))]
mod tests {
    use std::collections::BTreeMap;

    use super::super::config_file::Transport;
    use super::super::process_group::ProcessGroups;
    use super::*;

    /// A server that is a script.
    fn script(name: &str, text: &str) -> ServerSpec {
        let args = vec!["-c".to_owned(), text.to_owned()];
        let transport = Transport::Process { command: "sh".to_owned(), args, env: BTreeMap::new(), cwd: None };
        ServerSpec { name: name.to_owned(), transport }
    }

    async fn start_error(specs: Vec<ServerSpec>) -> String {
        let limit = Duration::from_millis(500);
        let options = StartOptions { limit, hidden: Vec::new(), groups: ProcessGroups::default() };
        Servers::start(specs, options).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_server_that_writes_something_else_is_named_with_it() {
        let error = start_error(vec![script("loud", "echo Welcome; echo 'still busy' >&2; exec sleep 1000")]).await;
        assert!(error.starts_with("the MCP server loud did not answer within 0.5 s"), "{error}");
        assert!(error.contains("begins with \"Welcome\"") && error.ends_with("still busy"), "{error}");
    }

    #[tokio::test]
    async fn one_failure_ends_all_servers() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let silent = script("silent", &format!("echo $$ > {}; exec sleep 1000", file.display()));
        let error = start_error(vec![silent, script("broken", "sleep 0.2; exit 1")]).await;
        assert!(error.contains("server broken did not start: it ended before it answered"), "{error}");
        let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let runs = || rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap()).is_ok();
        for _ in 0..200 {
            if !runs() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the other server still runs");
    }

    #[tokio::test]
    async fn an_error_of_the_server_is_passed_on() {
        let answer = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"no licence"}}"#;
        let error = start_error(vec![script("strict", &format!("read line; echo '{answer}'; exec sleep 1000"))]).await;
        assert!(error.contains("strict did not start: no licence"), "{error}");
    }
}
