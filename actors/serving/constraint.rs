//! What an answer has to match: the client's constraint, calls of tools, or either; or free text with calls.

use std::sync::Arc;

use cuelight_engine::constraint::{Constraint, Grammar, GrammarError};
use cuelight_engine::engine::TokenId;

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::request::{ConstraintField, OutputOptions, ToolChoice};
use crate::output::{ArgumentChecks, FreeGrammar, ToolSpec};
use crate::pipeline::runtime::{OutputRules, ServedModel};

/// What an answer has to match, and how it is read.
#[derive(Debug, Default)]
pub(super) struct Compiled {
    /// What it has to match. `None`: anything.
    pub constraint: Option<Constraint>,
    /// What calls without the markers of the model's format have to pass. `None`: there are none, because the request says what
    /// the answer has to match.
    pub unmarked_calls: Option<ArgumentChecks>,
}

/// Compiles what the answer has to match.
///
/// # Errors
/// [`ApiError`] when it cannot be enforced. It names the field.
pub(super) async fn compile(
    model: &Arc<ServedModel>,
    asked: Option<ConstraintField>,
    output: &OutputOptions,
    rules: &OutputRules,
) -> Result<Compiled, ApiError> {
    let special = rules.special_tokens(&model.tokenizer);
    let (field, checked) = match (asked, output.tool_choice) {
        // An answer of calls has no text that could match the client's constraint.
        (_, ToolChoice::Required) => (Some(required(output, rules, &special)?), None),
        (Some(asked), _) => (Some(answer_or_calls(asked, output, rules, &special)?), None),
        (None, ToolChoice::Auto) if output.tools.iter().any(|tool| tool.is_strict) => {
            (free(model, output, rules, &special)?, Some(unmarked(output, rules)))
        }
        (None, _) => (None, Some(Arc::default())),
    };
    if field.is_none() && checked.as_ref().is_none_or(|tools| tools.is_empty()) {
        return Ok(Compiled { constraint: None, unmarked_calls: checked.map(|_| ArgumentChecks::default()) });
    }
    let compiler = model.constraints.clone();
    on_blocking_thread(move || {
        let compile =
            |field: ConstraintField| compiler.compile(&field.grammar).map_err(|error| refusal(&field.path, &error));
        let check = |tools: Arc<[ToolSpec]>| ArgumentChecks::of(&tools).map_err(|error| refusal("tools", &error));
        Ok(Compiled { constraint: field.map(compile).transpose()?, unmarked_calls: checked.map(check).transpose()? })
    })
    .await
}

/// The tools whose calls without markers are checked when they are complete, because the grammar of calls begins at a marker.
fn unmarked(output: &OutputOptions, rules: &OutputRules) -> Arc<[ToolSpec]> {
    if rules.format.writes_unmarked_calls() { output.tools.clone() } else { Arc::default() }
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
