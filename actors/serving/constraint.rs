//! What an answer has to match: the client's constraint, calls of tools, or either.

use std::sync::Arc;

use cuelight_engine::constraint::{Constraint, Grammar, GrammarError};

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::request::{ConstraintField, OutputOptions, ToolChoice};
use crate::pipeline::runtime::{OutputRules, ServedModel};

/// Compiles what the answer has to match. `None`: anything.
///
/// # Errors
/// [`ApiError`] when it cannot be enforced. It names the field.
pub(super) async fn compile(
    model: &Arc<ServedModel>,
    asked: Option<ConstraintField>,
    output: &OutputOptions,
    rules: &OutputRules,
) -> Result<Option<Constraint>, ApiError> {
    let calls = || call_grammar(model, output, rules);
    let field = match (asked, output.tool_choice) {
        // An answer of calls has no text that could match the client's constraint.
        (_, ToolChoice::Required) => required(calls())?,
        (Some(asked), ToolChoice::Auto) => either(calls(), asked),
        (Some(asked), ToolChoice::None) => asked,
        (None, _) => return Ok(None),
    };
    let compiler = model.constraints.clone();
    on_blocking_thread(move || {
        let compiled = compiler.compile(&field.grammar);
        compiled.map(Some).map_err(|error| refusal(&field.path, &error))
    })
    .await
}

/// The grammar of calls. `None` without tools, or when the grammar of this model's calls is not known.
fn call_grammar(model: &ServedModel, output: &OutputOptions, rules: &OutputRules) -> Option<Grammar> {
    let special: Vec<(String, u32)> =
        rules.visible_tokens.iter().map(|&token| (model.tokenizer.token_text(token), token)).collect();
    rules.format.call_grammar(&output.tools, output.parallel_tool_calls, &special).map(Grammar::Lark)
}

fn required(calls: Option<Grammar>) -> Result<ConstraintField, ApiError> {
    let grammar = calls.ok_or_else(|| {
        let message = "a call cannot be required of this model, because the grammar of its tool calls is not known; use \
                       `tool_choice` \"auto\"";
        ApiError::Unsupported { param: "tool_choice".to_owned(), message: message.to_owned() }
    })?;
    Ok(ConstraintField { path: "tool_choice".to_owned(), grammar })
}

/// Calls, or an answer in the JSON that the client wants. Other grammars describe all that the model writes, so that a client
/// can have its own grammar of calls.
fn either(calls: Option<Grammar>, asked: ConstraintField) -> ConstraintField {
    match (calls, asked) {
        (Some(calls), ConstraintField { path, grammar: json @ (Grammar::JsonObject | Grammar::JsonSchema(_)) }) => {
            ConstraintField { path, grammar: Grammar::AnyOf(vec![calls, json]) }
        }
        (_, asked) => asked,
    }
}

/// The error for a grammar that was refused.
fn refusal(path: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Refused { pointer, message } => {
            let param = pointer.as_deref().map_or_else(|| path.to_owned(), |pointer| format!("{path}{pointer}"));
            ApiError::invalid(param, format!("`{path}` cannot be enforced: {message}"))
        }
        GrammarError::Cancelled | GrammarError::Vocabulary(_) => {
            ApiError::Unsupported { param: path.to_owned(), message: format!("`{path}`: {error}") }
        }
    }
}
