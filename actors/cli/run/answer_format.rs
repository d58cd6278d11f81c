//! What the user asks of every answer: a schema or grammar that it matches, and whether the model reasons first.

use std::path::{Path, PathBuf};

use cuelight_engine::constraint::{Constraint, Grammar, GrammarError};
use cuelight_engine::format::chat_template::Cancellation;

use crate::cli::error::CliError;
use crate::output::ToolSpec;
use crate::pipeline::runtime::ServedModel;
use crate::serving::thinking::Thinking;

/// The flags about the format of answers.
#[derive(Debug, Clone, clap::Args)]
pub struct FormatFlags {
    /// Answer with JSON that matches the JSON schema in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "grammar")]
    json_schema: Option<PathBuf>,
    /// Answer with text that matches the grammar in this file: GBNF if it has `::=`, else Lark.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Whether the model reasons before it answers: on, off, or an effort such as low or high.
    #[arg(long, value_name = "on|off|EFFORT", value_parser = Thinking::of_word, conflicts_with = "raw")]
    think: Option<Thinking>,
}

/// What is asked of every answer.
#[derive(Debug, Clone, Default)]
pub struct AnswerFormat {
    /// What the answer has to match.
    pub constraint: Option<Constraint>,
    /// Whether the model reasons first.
    pub thinking: Thinking,
    /// The grammar of which the constraint was made, with its file.
    grammar: Option<(PathBuf, Grammar)>,
}

/// Why a model cannot be told to reason.
pub const NO_REASONING: &str = "this model does not reason, or its chat template does not show how";

impl FormatFlags {
    /// Reads the files, which needs no model.
    ///
    /// # Errors
    /// [`CliError`] that names the file when it cannot be read.
    pub fn read(&self) -> Result<AskedFormat, CliError> {
        let grammar = match (&self.json_schema, &self.grammar) {
            (Some(file), _) => Some((file.clone(), schema(file)?)),
            (None, Some(file)) => Some((file.clone(), grammar(file)?)),
            (None, None) => None,
        };
        Ok(AskedFormat { grammar, thinking: self.think.unwrap_or_default() })
    }
}

/// What the flags ask for, before it is compiled for a model.
#[derive(Debug)]
pub struct AskedFormat {
    /// The grammar with its file.
    grammar: Option<(PathBuf, Grammar)>,
    thinking: Thinking,
}

impl AskedFormat {
    /// Compiles the grammar. In a chat, it has the headers that the model writes before an answer.
    ///
    /// # Errors
    /// [`CliError`] that names the file when it cannot be enforced, or `--think` when the model does not reason.
    pub fn compile(self, model: &ServedModel, is_chat: bool) -> Result<AnswerFormat, CliError> {
        if self.thinking.is_on() && !(is_chat && reasons(model)) {
            return Err(CliError::Usage(format!("--think: {NO_REASONING}; leave it out")));
        }
        let mut format = AnswerFormat { constraint: None, thinking: self.thinking, grammar: self.grammar };
        format.constraint = format.compiled(model, is_chat, &[])?;
        Ok(format)
    }
}

impl AnswerFormat {
    /// Lets an answer that has to be JSON be calls of these tools instead. Other grammars may have calls of their own.
    ///
    /// # Errors
    /// [`CliError`] that names the file when that cannot be enforced.
    pub fn allow_calls(&mut self, model: &ServedModel, tools: &[ToolSpec]) -> Result<(), CliError> {
        self.constraint = self.compiled(model, true, tools)?;
        Ok(())
    }

    fn compiled(&self, model: &ServedModel, is_chat: bool, tools: &[ToolSpec]) -> Result<Option<Constraint>, CliError> {
        let Some((file, grammar)) = &self.grammar else { return Ok(None) };
        let is_json = matches!(grammar, Grammar::JsonSchema(_));
        let tools = if is_json { tools } else { &[] };
        let whole = if is_chat { with_headers(grammar.clone(), model, tools) } else { Ok(grammar.clone()) };
        let compiled = whole.and_then(|grammar| model.constraints.compile(&grammar));
        let refused = |error| CliError::Failed(format!("{} cannot be enforced: {error}", file.display()));
        compiled.map(Some).map_err(refused)
    }
}

/// Whether the model's output has reasoning that is known as such.
pub fn reasons(model: &ServedModel) -> bool {
    model.find_output_rules(&Cancellation::default()).format.has_reasoning()
}

fn with_headers(grammar: Grammar, model: &ServedModel, tools: &[ToolSpec]) -> Result<Grammar, GrammarError> {
    let rules = model.find_output_rules(&Cancellation::default());
    Ok(match rules.format.grammar_around(tools, true, &rules.special_tokens(&model.tokenizer), false)? {
        Some(lark) => Grammar::Around { lark, answer: Box::new(grammar) },
        None => grammar,
    })
}

fn schema(file: &Path) -> Result<Grammar, CliError> {
    let parsed = serde_json::from_str(&read(file)?);
    parsed
        .map(Grammar::JsonSchema)
        .map_err(|error| CliError::Failed(format!("{} is not JSON: {error}", file.display())))
}

fn grammar(file: &Path) -> Result<Grammar, CliError> {
    let text = read(file)?;
    Ok(if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) })
}

fn read(file: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(file).map_err(|error| CliError::Failed(format!("cannot read {}: {error}", file.display())))
}
