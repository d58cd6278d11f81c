//! What the user asks of every answer: a schema or grammar that it matches, and whether the model reasons first.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use cuelight_engine::constraint::{Constraint, Grammar};
use serde_json::{Map, Value, json};

use crate::cli::error::CliError;
use crate::pipeline::runtime::ServedModel;

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
    #[arg(long, value_name = "on|off|EFFORT")]
    think: Option<Thinking>,
}

/// Whether a model reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Thinking {
    On,
    Off,
    Effort(String),
}

impl FromStr for Thinking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];
        match text {
            "on" => Ok(Thinking::On),
            "off" => Ok(Thinking::Off),
            effort if EFFORTS.contains(&effort) => Ok(Thinking::Effort(effort.to_owned())),
            _ => Err(format!("expected on, off or one of {}", EFFORTS.join(", "))),
        }
    }
}

/// What is asked of every answer.
#[derive(Debug, Clone, Default)]
pub struct AnswerFormat {
    /// What the answer has to match.
    pub constraint: Option<Constraint>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}

impl FormatFlags {
    /// Reads and compiles the files.
    ///
    /// # Errors
    /// [`CliError`] that names the file when it cannot be read or enforced.
    pub fn read(&self, model: &ServedModel) -> Result<AnswerFormat, CliError> {
        let grammar = match (&self.json_schema, &self.grammar) {
            (Some(file), _) => Some((file, schema(file)?)),
            (None, Some(file)) => Some((file, grammar(file)?)),
            (None, None) => None,
        };
        let compile = |(file, grammar): (&PathBuf, Grammar)| {
            let compiled = model.constraints.compile(&grammar);
            compiled.map_err(|error| CliError::Failed(format!("{} cannot be enforced: {error}", file.display())))
        };
        Ok(AnswerFormat { constraint: grammar.map(compile).transpose()?, variables: self.variables() })
    }

    /// Models differ in the name of the variable, so every name is set.
    fn variables(&self) -> Map<String, Value> {
        let Some(thinking) = &self.think else { return Map::new() };
        let is_on = *thinking != Thinking::Off;
        let mut variables = Map::from_iter(["enable_thinking", "thinking"].map(|name| (name.to_owned(), json!(is_on))));
        if let Thinking::Effort(effort) = thinking {
            variables.insert("reasoning_effort".to_owned(), json!(effort));
        }
        variables
    }
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_sets_the_variables_of_every_family() {
        let variables = |text: &str| {
            let think = Some(text.parse().unwrap());
            Value::Object(FormatFlags { json_schema: None, grammar: None, think }.variables())
        };
        assert_eq!(variables("off"), json!({ "enable_thinking": false, "thinking": false }));
        let low = json!({ "enable_thinking": true, "thinking": true, "reasoning_effort": "low" });
        assert_eq!(variables("low"), low);
        assert!("sometimes".parse::<Thinking>().is_err());
    }
}
