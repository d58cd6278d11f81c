//! What an answer has to match: the client's constraint, calls of tools, or either; or free text with calls.

use std::sync::Arc;

use cuelight_engine::constraint::{Constraint, Grammar, GrammarError};
use cuelight_engine::engine::TokenId;

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::request::{ConstraintField, OutputOptions, ToolChoice};
use crate::output::FreeGrammar;
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
    let special = rules.special_tokens(&model.tokenizer);
    let field = match (asked, output.tool_choice) {
        // An answer of calls has no text that could match the client's constraint.
        (_, ToolChoice::Required) => required(output, rules, &special)?,
        (Some(asked), _) => answer_or_calls(asked, output, rules, &special)?,
        (None, ToolChoice::Auto) if output.tools.iter().any(|tool| tool.is_strict) => {
            match free(model, output, rules, &special)? {
                Some(field) => field,
                None => return Ok(None),
            }
        }
        (None, _) => return Ok(None),
    };
    let compiler = model.constraints.clone();
    on_blocking_thread(move || {
        let compiled = compiler.compile(&field.grammar);
        compiled.map(Some).map_err(|error| refusal(&field.path, &error))
    })
    .await
}

fn required(
    output: &OutputOptions,
    rules: &OutputRules,
    special: &[(String, TokenId)],
) -> Result<ConstraintField, ApiError> {
    let calls = rules.format.call_grammar(&output.tools, output.parallel_tool_calls, special, !output.parses_reasoning);
    let calls = calls.map_err(|error| refusal("tool_choice", &error))?;
    let calls = calls.ok_or_else(|| {
        let message = "a call cannot be required of this model, because the grammar of its tool calls is not known; use \
                       `tool_choice` \"auto\"";
        ApiError::Unsupported { param: "tool_choice".to_owned(), message: message.to_owned() }
    })?;
    Ok(ConstraintField { path: "tool_choice".to_owned(), grammar: Grammar::Lark(calls) })
}

/// Free text with calls. `None` if the model's calls begin like usual text.
fn free(
    model: &ServedModel,
    output: &OutputOptions,
    rules: &OutputRules,
    special: &[(String, TokenId)],
) -> Result<Option<ConstraintField>, ApiError> {
    let mut text = rules.text_tokens(&model.tokenizer);
    text.retain(|&token| (token as usize) < model.constraints.rows());
    let grammar = rules.format.free_grammar(&output.tools, output.parallel_tool_calls, special, &text);
    let grammar = grammar.map_err(|error| refusal("tools", &error))?;
    Ok(grammar.map(|FreeGrammar { lark, triggers }| ConstraintField {
        path: "tools".to_owned(),
        grammar: Grammar::Triggered { lark, triggers },
    }))
}

/// An answer that matches the client's constraint, with the headers that the model's format has before it. JSON may be replaced
/// by calls of tools. Other grammars may not, so that a client can have its own grammar of calls.
fn answer_or_calls(
    asked: ConstraintField,
    output: &OutputOptions,
    rules: &OutputRules,
    special: &[(String, TokenId)],
) -> Result<ConstraintField, ApiError> {
    let ConstraintField { path, grammar } = asked;
    let is_json = matches!(grammar, Grammar::JsonObject | Grammar::JsonSchema(_));
    let tools = if is_json && output.tool_choice == ToolChoice::Auto { &*output.tools } else { &[] };
    let around = rules.format.grammar_around(tools, output.parallel_tool_calls, special, !output.parses_reasoning);
    let grammar = match around.map_err(|error| refusal("tools", &error))? {
        Some(lark) => Grammar::Around { lark, answer: Box::new(grammar) },
        None => grammar,
    };
    Ok(ConstraintField { path, grammar })
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
