//! The processes of one template.

use std::sync::{Mutex, PoisonError};

use super::WorkerProgram;
use super::process::Process;
use crate::format::chat_template::cancellation::Cancellation;
use crate::format::chat_template::error::ChatTemplateError;
use crate::format::chat_template::inputs::{Definition, TemplateInputs};

/// Most processes that wait for work.
const MAX_IDLE: usize = 2;
/// A process that has handled a message of this size ends, so that its memory returns to the system.
const LARGE_BYTES: usize = 4 << 20;

/// The processes of one template. Each renders one conversation at a time.
pub(in crate::format::chat_template) struct Pool {
    program: WorkerProgram,
    definition: Vec<u8>,
    idle: Mutex<Vec<Process>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts the first process, which compiles the template.
    ///
    /// # Errors
    /// [`ChatTemplateError`] when the template is invalid or over a limit, or no process can be started.
    pub(in crate::format::chat_template) fn start(
        program: WorkerProgram,
        definition: &Definition,
    ) -> Result<Self, ChatTemplateError> {
        let definition = to_json(definition)?;
        let first = Process::start(&program, &definition)?;
        Ok(Pool { program, definition, idle: Mutex::new(vec![first]) })
    }

    /// Renders a conversation in an idle process, or in a new one.
    ///
    /// # Errors
    /// [`ChatTemplateError`] when the template refuses the conversation, fails, or exceeds a limit.
    pub(in crate::format::chat_template) fn render(
        &self,
        inputs: &TemplateInputs<'_>,
        cancellation: &Cancellation,
    ) -> Result<String, ChatTemplateError> {
        let request = to_json(inputs)?;
        let mut process = match self.take_idle() {
            Some(process) => process,
            None => Process::start(&self.program, &self.definition)?,
        };
        let reply = process.call(&self.program, &request, cancellation);
        let is_small = request.len() + reply.as_ref().map_or(0, String::len) < LARGE_BYTES;
        if is_small && is_own_answer(&reply) {
            self.keep(process);
        }
        reply
    }

    fn take_idle(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut process) = idle.pop() {
            if process.is_alive() {
                return Some(process);
            }
        }
        None
    }

    fn keep(&self, process: Process) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(process);
        }
    }
}

/// Whether the process itself answered and waits for the next request.
fn is_own_answer(reply: &Result<String, ChatTemplateError>) -> bool {
    matches!(reply, Ok(_) | Err(ChatTemplateError::Refused(_) | ChatTemplateError::Render { .. }))
}

fn to_json(value: &impl serde::Serialize) -> Result<Vec<u8>, ChatTemplateError> {
    serde_json::to_vec(value).map_err(|error| ChatTemplateError::Worker(error.to_string()))
}
