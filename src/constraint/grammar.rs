//! What a client may ask for.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::error::GrammarError;
use super::{gbnf, schema};

/// The texts that a constraint accepts.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// The instances of a JSON schema.
    JsonSchema(Value),
    /// The texts that a regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark, with the rule `start`.
    Lark(String),
    /// A Lark grammar of a text that is free up to a trigger: wherever no trigger has begun, the tokens that may come next are
    /// those that may come first.
    Triggered {
        /// The Lark grammar.
        lark: String,
        /// The triggers.
        triggers: Vec<String>,
    },
    /// A grammar in llama.cpp's notation, with the rule `root`.
    Gbnf(String),
    /// A Lark grammar that refers to another grammar as `@answer`.
    Around {
        /// The Lark grammar.
        lark: String,
        /// The grammar in it.
        answer: Box<Grammar>,
    },
}

impl Grammar {
    /// A key that differs for different grammars, for caches.
    pub(super) fn key(&self) -> String {
        match self {
            Grammar::JsonObject => "object".to_owned(),
            Grammar::JsonSchema(schema) => format!("schema {schema}"),
            Grammar::Regex(regex) => format!("regex {regex}"),
            Grammar::Choice(texts) => format!("choice {texts:?}"),
            Grammar::Lark(lark) => format!("lark {lark}"),
            Grammar::Triggered { lark, triggers } => format!("triggered {triggers:?} {lark}"),
            Grammar::Gbnf(gbnf) => format!("gbnf {gbnf}"),
            Grammar::Around { lark, answer } => format!("around {lark:?} {}", answer.key()),
        }
    }

    /// The grammar in the library's form.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] when it is malformed.
    pub(super) fn prepare(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Grammar::JsonObject => of_schema(schema::prepare(&json!({ "type": "object" }))?),
            Grammar::JsonSchema(value) => of_schema(schema::prepare(value)?),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Choice(texts) => TopLevelGrammar::from_lark(choice(texts)?),
            Grammar::Lark(lark) | Grammar::Triggered { lark, .. } => TopLevelGrammar::from_lark(lark.clone()),
            Grammar::Gbnf(gbnf) => TopLevelGrammar::from_lark(gbnf::to_lark(gbnf)?),
            Grammar::Around { lark, answer } => around(lark, answer)?,
        })
    }
}

fn of_schema(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema))
}

fn around(lark: &str, answer: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let mut whole = TopLevelGrammar::from_lark(lark.to_owned());
    for mut grammar in answer.prepare()?.grammars {
        grammar.name = Some("answer".to_owned());
        whole.grammars.push(grammar);
    }
    Ok(whole)
}

/// A grammar of literal texts.
fn choice(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(GrammarError::refused("the choices must be texts that are not empty, and at least one"));
    }
    let literals: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}", literals.join(" | ")))
}
