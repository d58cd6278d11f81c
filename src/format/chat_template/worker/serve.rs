//! The process that renders: reads requests until its parent ends.

use std::io::{self, Read, Write};

use super::protocol;
use crate::format::chat_template::error::ChatTemplateError;
use crate::format::chat_template::inputs::{Definition, ReceivedInputs};
use crate::format::chat_template::interpreter::Interpreter;

/// Compiles the template of the first request and renders the conversations of the others. `before_each` is called before the
/// work of each request. Returns when the stream ends.
///
/// # Errors
/// [`io::Error`] when the stream fails.
pub fn serve(stream: &mut (impl Read + Write), mut before_each: impl FnMut()) -> io::Result<()> {
    let Some(definition) = protocol::read(stream)? else { return Ok(()) };
    before_each();
    let definition: Definition = serde_json::from_slice(&definition)?;
    let interpreter = match Interpreter::new(&definition) {
        Ok(interpreter) => interpreter,
        Err(error) => return protocol::write(stream, &protocol::encode_reply(Err(error))),
    };
    protocol::write(stream, &protocol::encode_reply(Ok(String::new())))?;
    while let Some(request) = protocol::read(stream)? {
        before_each();
        protocol::write(stream, &protocol::encode_reply(render(&interpreter, &request)))?;
    }
    Ok(())
}

fn render(interpreter: &Interpreter, request: &[u8]) -> Result<String, ChatTemplateError> {
    let inputs: ReceivedInputs =
        serde_json::from_slice(request).map_err(|error| ChatTemplateError::Worker(error.to_string()))?;
    interpreter.render(&inputs.borrow())
}
