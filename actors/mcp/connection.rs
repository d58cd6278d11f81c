//! One server: its session and its tools.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation, JsonObject, Tool,
};
use rmcp::service::{ClientInitializeError, NotificationContext, RunningService, ServiceError, serve_client};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::{ClientHandler, RoleClient};

use super::config_file::{ServerSpec, Transport};
use super::error::{CallError, ServerError};
use super::http_client::{HttpFailure, McpHttpClient};
use super::process::{ServerProcess, Streams};
use super::process_group::ProcessGroups;
use crate::core::error_chain::error_chain;

/// How long a connection may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How servers are started.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The time to start and to list the tools.
    pub limit: Duration,
    /// Variables that child processes do not get.
    pub hidden: Vec<String>,
    /// The groups of child processes.
    pub groups: ProcessGroups,
}

/// Notes what a server says without being asked.
#[derive(Debug, Clone, Default)]
struct Listener {
    tools_changed: Arc<AtomicBool>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let program = Implementation::new("cuelight", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), program)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.store(true, Ordering::Relaxed);
    }
}

type Client = RunningService<RoleClient, Listener>;

/// A server that was started.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    /// `None` for a server that speaks HTTP.
    process: Option<ServerProcess>,
    /// Its tools when they were listed last.
    pub tools: Vec<Tool>,
    limit: Duration,
}

impl Connection {
    /// Starts a server and lists its tools.
    ///
    /// # Errors
    /// [`ServerError`] with the last lines of the server's standard error.
    pub async fn open(spec: &ServerSpec, options: &StartOptions) -> Result<Self, ServerError> {
        let name = || spec.name.clone();
        let spawned = spawn(&spec.transport, options);
        let spawned = spawned.map_err(|reason| ServerError::NotStarted { name: name(), reason })?;
        let (mut process, streams) = spawned.unzip();
        let opened = async {
            let client = connect(&spec.transport, streams).await?;
            let tools = list_tools(&client).await?;
            Ok((client, tools))
        };
        let limit = options.limit;
        match tokio::time::timeout(limit, opened).await {
            Ok(Ok((client, tools))) => Ok(Connection { client, process, tools, limit }),
            Ok(Err(reason)) => {
                let lines = last_lines(&mut process).await;
                Err(ServerError::Failed { name: name(), reason, lines })
            }
            Err(_) => {
                let stray = process.as_ref().and_then(ServerProcess::stray_line);
                Err(ServerError::Silent { name: name(), limit, stray, lines: last_lines(&mut process).await })
            }
        }
    }

    /// Whether the server has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed() || self.client.is_transport_closed()
    }

    /// Lists the tools again if the server has said that they changed; returns whether it did.
    ///
    /// # Errors
    /// A sentence; the tools are as they were.
    pub async fn update(&mut self) -> Result<bool, String> {
        if !self.client.service().tools_changed.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let listed = tokio::time::timeout(self.limit, list_tools(&self.client)).await;
        self.tools = listed.map_err(|_| format!("it did not answer within {} s", self.limit.as_secs()))??;
        Ok(true)
    }

    /// Calls a tool. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`CallError`] when there is no result. A result that says that the tool failed is a result.
    pub async fn call(&self, tool: &str, arguments: JsonObject, limit: Duration) -> Result<CallToolResult, CallError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match tokio::time::timeout(limit, self.client.call_tool(params)).await {
            Err(_) => Err(CallError::TimedOut(limit)),
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) if self.is_closed() => Err(CallError::ServerEnded),
            Ok(Err(error)) => Err(call_error(&error)),
        }
    }

    /// Ends the session, and the server if it is a child process.
    pub async fn close(mut self) {
        // A server that does not react is ended anyway.
        let _ = self.client.close_with_timeout(CLOSE_TIMEOUT).await;
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

/// Starts the process of a server, if it is one.
fn spawn(transport: &Transport, options: &StartOptions) -> Result<Option<(ServerProcess, Streams)>, String> {
    let Transport::Process { command, cwd, .. } = transport else { return Ok(None) };
    if let Some(cwd) = cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
        return Err(format!("{} is not a directory", cwd.display()));
    }
    ServerProcess::spawn(transport, &options.hidden, &options.groups).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if Path::new(command).components().count() > 1 => format!("{command} does not exist"),
        io::ErrorKind::NotFound => format!("the program {command} was not found in the directories of PATH"),
        _ => format!("{command}: {error}"),
    })
}

/// Connects and agrees on the protocol.
async fn connect(transport: &Transport, streams: Option<Streams>) -> Result<Client, String> {
    let listener = Listener::default();
    let connected = match (transport, streams) {
        (Transport::Http { url, headers }, _) => {
            let headers = headers.iter().map(|(name, value)| header(name, value)).collect::<Result<_, _>>()?;
            let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
            let client = McpHttpClient::new().map_err(|error| error.to_string())?;
            serve_client(listener, StreamableHttpClientTransport::with_client(client, config)).await
        }
        (_, Some(streams)) => serve_client(listener, streams).await,
        (_, None) => return Err("it has no streams".to_owned()),
    };
    let ended = || "it ended before it answered".to_owned();
    connected.map_err(|error| match error {
        ClientInitializeError::ConnectionClosed(_) => ended(),
        ClientInitializeError::TransportError { error, .. } if is_closed_pipe(error.error.as_ref()) => ended(),
        ClientInitializeError::JsonRpcError(error) => error.message.into_owned(),
        ClientInitializeError::TransportError { error, .. } => transport_reason(error.error.as_ref()),
        error => error_chain(&error),
    })
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || format!("the header {name:?} is not valid");
    let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok((HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value))
}

/// Whether the server no longer reads.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Our own sentence about a failed request, if that is the cause.
fn transport_reason(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(StreamableHttpError::Client(failure)) = error.downcast_ref::<StreamableHttpError<HttpFailure>>() {
            return failure.to_string();
        }
        cause = error.source();
    }
    error_chain(error)
}

/// The tools of a server, none for one that has other things only.
async fn list_tools(client: &Client) -> Result<Vec<Tool>, String> {
    if client.peer_info().is_some_and(|info| info.capabilities.tools.is_none()) {
        return Ok(Vec::new());
    }
    client.list_all_tools().await.map_err(|error| format!("its tools cannot be listed: {}", service_reason(&error)))
}

fn call_error(error: &ServiceError) -> CallError {
    match error {
        ServiceError::TransportClosed => CallError::ServerEnded,
        error => CallError::Failed(service_reason(error)),
    }
}

fn service_reason(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => error.message.clone().into_owned(),
        ServiceError::TransportSend(error) => transport_reason(error.error.as_ref()),
        ServiceError::TransportClosed => "it has ended".to_owned(),
        error => error_chain(error),
    }
}

async fn last_lines(process: &mut Option<ServerProcess>) -> Vec<String> {
    match process {
        Some(process) => process.last_lines().await,
        None => Vec::new(),
    }
}
