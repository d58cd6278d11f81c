//! Runs the calls of one answer: asks for each, runs the allowed ones at the same time, and shows what became of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuelight_engine::media::MediaKind;
use futures_util::future::join_all;
use rmcp::model::JsonObject;

use super::approval::Approval;
use super::asker::{Asks, Reply};
use super::call_text;
use crate::cli::async_runtime;
use crate::cli::echo::EchoOff;
use crate::cli::error::CliError;
use crate::cli::run::media_file;
use crate::cli::run::rounds::{Results, RunsCalls};
use crate::cli::run::turn::{ToolCall, Turn};
use crate::cli::terminal::Terminal;
use crate::core::error_chain::error_chain;
use crate::mcp::servers::{ServerTool, Servers};
use crate::mcp::tool_result::ToolResult;
use crate::pipeline::runtime::ServedModel;

/// What the model is told of a call that the user does not want.
const REFUSED: &str = "the user does not allow this call";

/// What the model is told of a call that was stopped.
const STOPPED: &str = "the user stopped this call";

/// Runs the calls of one question.
pub struct CallRunner<'a> {
    pub(super) servers: &'a Servers,
    pub(super) approval: &'a mut Approval,
    pub(super) asker: Option<&'a mut dyn Asks>,
    pub(super) model: Arc<ServedModel>,
    /// The longest time of a call.
    pub(super) limit: Duration,
    /// Most bytes of a result.
    pub(super) max_bytes: usize,
    pub(super) terminal: Terminal,
    pub(super) tokio: &'a tokio::runtime::Runtime,
}

/// What happens to a call.
enum Decision<'a> {
    Run(&'a ServerTool, JsonObject),
    /// The model is told this.
    Refuse(String),
    /// The user ends the question.
    Stop,
}

impl RunsCalls for CallRunner<'_> {
    fn run(&mut self, calls: &[ToolCall]) -> Result<Results, CliError> {
        let mut decisions = Vec::with_capacity(calls.len());
        for call in calls {
            match self.decide(call)? {
                Decision::Stop => return Ok(stopped(calls)),
                decision => decisions.push(decision),
            }
        }
        let _echo = EchoOff::new();
        let all = join_all(calls.iter().zip(decisions).map(|(call, decision)| self.result(call, decision)));
        self.tokio.block_on(async {
            tokio::select! {
                // Dropping a call cancels it.
                turns = all => Ok(Results { turns, is_interrupted: false }),
                signal = async_runtime::interrupt() => signal.map(|()| stopped(calls)),
            }
        })
    }
}

fn stopped(calls: &[ToolCall]) -> Results {
    let turns = calls.iter().map(|call| Turn::result(call, ToolResult::error(STOPPED).text, Vec::new())).collect();
    Results { turns, is_interrupted: true }
}

impl<'a> CallRunner<'a> {
    fn decide(&mut self, call: &ToolCall) -> Result<Decision<'a>, CliError> {
        let Some(tool) = self.servers.find(&call.name) else {
            return Ok(Decision::Refuse(format!("there is no tool {:?}", call.name)));
        };
        let arguments = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let Ok(object) = serde_json::from_str::<JsonObject>(arguments) else {
            return Ok(Decision::Refuse("the arguments are not a JSON object".to_owned()));
        };
        if self.approval.allows(tool) {
            return Ok(Decision::Run(tool, object));
        }
        let Some(asker) = &mut self.asker else {
            let advice = "without a terminal, only the tools of --allow-tool run";
            self.terminal.notice(&format!("{} was refused: {advice}", call_text::asked(&named(tool), arguments)));
            return Ok(Decision::Refuse(REFUSED.to_owned()));
        };
        self.terminal.notice(&call_text::asked(&named(tool), arguments));
        Ok(match asker.ask()? {
            Reply::No => Decision::Refuse(REFUSED.to_owned()),
            Reply::Stop => Decision::Stop,
            Reply::Yes => Decision::Run(tool, object),
            Reply::Always => {
                self.approval.always_allow(tool);
                Decision::Run(tool, object)
            }
        })
    }

    /// The message about a call. Only the first image that is not read is named.
    async fn result(&self, call: &ToolCall, decision: Decision<'_>) -> Turn {
        let mut result = match decision {
            Decision::Run(tool, arguments) => self.call(tool, arguments, call).await,
            Decision::Refuse(reason) => ToolResult::error(&reason),
            Decision::Stop => ToolResult::error(STOPPED),
        };
        let mut media = Vec::new();
        for image in std::mem::take(&mut result.images) {
            let name = format!("an image of {}", call.name);
            match media_file::encode(MediaKind::Image, name, image, &self.model).await {
                Ok(items) => media.extend(items),
                Err(error) => result.text.push_str(&format!("\n(an image that is left out: {})", error_chain(&error))),
            }
        }
        Turn::result(call, result.text, media)
    }

    /// Runs a call and shows a line about it.
    async fn call(&self, tool: &ServerTool, arguments: JsonObject, call: &ToolCall) -> ToolResult {
        let start = Instant::now();
        let result = match self.servers.call(tool, arguments, self.limit).await {
            Ok(result) => ToolResult::read(result, self.model.takes(MediaKind::Image), self.max_bytes),
            Err(error) => ToolResult::error(&error_chain(&error)),
        };
        self.terminal.notice(&call_text::done(&named(tool), &call.arguments, &result, start.elapsed()));
        result
    }
}

/// A tool as the user knows it.
fn named(tool: &ServerTool) -> String {
    format!("{}.{}", tool.server, tool.name)
}
