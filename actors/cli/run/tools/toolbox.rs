//! The servers of `--mcp` with what the user allows.

use std::time::Duration;

use super::approval::Approval;
use super::asker::Asks;
use super::calls::CallRunner;
use super::listing::listing;
use super::startup;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::run::offered_tools::OfferedTools;
use crate::cli::run::session::Session;
use crate::cli::terminal::Terminal;
use crate::config::Config;
use crate::mcp::servers::Servers;
use crate::mcp::tool_result::MAX_TEXT_BYTES;

/// The tools that the model may call.
#[derive(Debug)]
pub struct Toolbox {
    servers: Servers,
    approval: Approval,
    /// The longest time of a call.
    limit: Duration,
    terminal: Terminal,
}

impl Toolbox {
    /// Starts the servers that the settings name; `None` if they name none.
    ///
    /// # Errors
    /// [`CliError`] about the file or a server.
    pub fn start(context: &Context, tokio: &tokio::runtime::Runtime) -> Result<Option<Self>, CliError> {
        let Config { mcp, allow_tool, tool_timeout, .. } = &context.config;
        let Some(file) = mcp else { return Ok(None) };
        let servers = startup::start(file, tokio)?;
        let approval = Approval::new(allow_tool.clone());
        for pattern in approval.unused(servers.tools()) {
            context.terminal.notice(&format!("warning: --allow-tool {pattern} matches no tool"));
        }
        Ok(Some(Toolbox { servers, approval, limit: *tool_timeout, terminal: context.terminal }))
    }

    /// How many tools there are, in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let (tools, servers) = (self.servers.tools().len(), self.servers.names().count());
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!("{tools} tool{} of {servers} MCP server{}", plural(tools), plural(servers))
    }

    /// What `/tools` prints.
    #[must_use]
    pub fn listing(&self) -> String {
        listing(&self.servers, &self.approval)
    }

    /// Offers the tools as they are now to the model.
    ///
    /// # Errors
    /// As [`Session::offer`].
    pub async fn offer(&mut self, session: &mut Session) -> Result<(), CliError> {
        for note in self.servers.refresh().await {
            self.terminal.notice(&note);
        }
        session.offer(OfferedTools::new(self.servers.tools()))
    }

    /// What runs the calls of a question. `asker`: `None` refuses the tools that do not run without asking.
    pub fn runner<'a>(
        &'a mut self,
        session: &Session,
        asker: Option<&'a mut dyn Asks>,
        tokio: &'a tokio::runtime::Runtime,
    ) -> CallRunner<'a> {
        CallRunner {
            servers: &self.servers,
            approval: &mut self.approval,
            asker,
            model: session.model.clone(),
            limit: self.limit,
            // A token has about four bytes, so that a result takes at most a quarter of the context.
            max_bytes: MAX_TEXT_BYTES.min(session.model.limits.context_tokens),
            terminal: self.terminal,
            tokio,
        }
    }

    /// Ends the servers.
    pub async fn stop(self) {
        self.servers.stop().await;
    }
}
