//! What a client may ask for.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::GrammarError;
use super::prepared::Prepared;
use super::{gbnf, schema, structural_tag, vocabulary};
use crate::format::tokenizer::Tokenizer;

/// The texts that a constraint accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Fixed texts, free text and parts that match schemas, as vLLM's structural tags describe them.
    StructuralTag(Value),
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
            Grammar::StructuralTag(tag) => format!("tag {tag}"),
            Grammar::Around { lark, answer } => format!("around {lark:?} {}", answer.key()),
        }
    }

    /// The grammar in the library's form, for the tokens of a tokenizer below `rows`.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] when it is malformed.
    pub(super) fn prepare(&self, tokenizer: &Tokenizer, rows: usize) -> Result<Prepared, GrammarError> {
        Ok(match self {
            Grammar::JsonObject => of_schema(schema::prepare(&json!({ "type": "object" }))?).into(),
            Grammar::JsonSchema(value) => of_schema(schema::prepare(value)?).into(),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex).into(),
            Grammar::Choice(texts) => TopLevelGrammar::from_lark(choice(texts)?).into(),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()).into(),
            Grammar::Triggered { lark, triggers } => {
                Prepared { grammar: TopLevelGrammar::from_lark(lark.clone()), triggers: triggers.clone() }
            }
            Grammar::Gbnf(gbnf) => TopLevelGrammar::from_lark(gbnf::to_lark(gbnf)?).into(),
            Grammar::StructuralTag(tag) => structural_tag::prepare(tag, &vocabulary::special(tokenizer, rows))?,
            Grammar::Around { lark, answer } => around(lark, answer.prepare(tokenizer, rows)?.grammar).into(),
        })
    }
}

fn of_schema(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema))
}

/// The grammar of `lark`, in which `@answer` is another grammar. The first of several that belong together is the whole.
fn around(lark: &str, answer: TopLevelGrammar) -> TopLevelGrammar {
    let mut whole = TopLevelGrammar::from_lark(lark.to_owned());
    whole.grammars.extend(answer.grammars);
    if let Some(answer) = whole.grammars.get_mut(1) {
        answer.name = Some("answer".to_owned());
    }
    whole
}

/// A grammar of literal texts.
fn choice(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(GrammarError::refused("the choices must be texts that are not empty, and at least one"));
    }
    let literals: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}", literals.join(" | ")))
}
