//! Lark grammars without recursion as regular expressions.
//!
//! A grammar in which no rule leads back to itself describes a regular language: each reference is replaced by what it
//! stands for. As a regular expression it can be a part of a JSON schema, which a grammar cannot.
//!
//! Source: the reference of Lark's grammar language (lark-parser.readthedocs.io, "Grammar Reference"). Texts are divided into
//! terminals in every possible way, where Lark takes the longest terminal first.

mod common;
mod error;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::error::LONGEST;
pub use self::error::LarkError;
use self::parser::{Definitions, Expression};

/// The regular expression of the texts that the rule `start` matches as a whole.
///
/// # Errors
/// [`LarkError`] when the grammar is malformed, or describes no regular language as far as this can be seen.
pub fn regex_of_lark(grammar: &str) -> Result<String, LarkError> {
    let definitions = parser::parse(grammar)?;
    let mut translation =
        Translation { definitions: &definitions, known: HashMap::new(), open: Vec::new(), ignored: None };
    if !definitions.ignored.is_empty() {
        let ignored = translation.any(&definitions.ignored, false)?;
        translation.ignored = Some(format!("(?:{ignored})*"));
        translation.known.clear();
    }
    let start = translation.reference("start")?;
    let regex = format!("{}{start}", translation.ignored.unwrap_or_default());
    if regex.len() > LONGEST { Err(LarkError::TooLarge) } else { Ok(regex) }
}

/// A translation under way.
struct Translation<'a> {
    definitions: &'a Definitions,
    known: HashMap<&'a str, String>,
    /// The names that are being translated.
    open: Vec<&'a str>,
    /// What may stand after each terminal of a rule.
    ignored: Option<String>,
}

impl<'a> Translation<'a> {
    /// What a name stands for, in a group.
    fn reference(&mut self, name: &str) -> Result<String, LarkError> {
        let (name, expression) =
            self.definitions.named.get_key_value(name).ok_or_else(|| LarkError::Undefined(name.to_owned()))?;
        if let Some(known) = self.known.get(name.as_str()) {
            return Ok(known.clone());
        }
        if self.open.contains(&name.as_str()) {
            return Err(LarkError::Recursive(name.clone()));
        }
        self.open.push(name);
        let regex = format!("(?:{})", self.expression(expression, !is_terminal(name))?);
        self.open.pop();
        if regex.len() > LONGEST {
            return Err(LarkError::TooLarge);
        }
        self.known.insert(name, regex.clone());
        Ok(regex)
    }

    /// `in_rule`: what is ignored may stand after each terminal.
    fn expression(&mut self, expression: &'a Expression, in_rule: bool) -> Result<String, LarkError> {
        let whole = match expression {
            Expression::Sequence(parts) => {
                let parts = parts.iter().map(|part| self.expression(part, in_rule));
                return parts.collect::<Result<String, _>>();
            }
            Expression::Any(parts) => return Ok(format!("(?:{})", self.any(parts, in_rule)?)),
            Expression::Repeat(part, times) => return Ok(format!("(?:{}){times}", self.expression(part, in_rule)?)),
            Expression::Name(name) if !is_terminal(name) => return self.reference(name),
            Expression::Name(name) => self.reference(name)?,
            Expression::Text { text, folds_case: true } => format!("(?i:{})", escape(text)),
            Expression::Text { text, folds_case: false } => escape(text),
            Expression::Regex { pattern, flags } if flags.is_empty() => format!("(?:{pattern})"),
            Expression::Regex { pattern, flags } => format!("(?{flags}:{pattern})"),
            Expression::Range(first, last) => format!("[{}-{}]", escape(first), escape(last)),
        };
        Ok(match &self.ignored {
            Some(ignored) if in_rule => format!("{whole}{ignored}"),
            _ => whole,
        })
    }

    fn any(&mut self, parts: &'a [Expression], in_rule: bool) -> Result<String, LarkError> {
        let parts = parts.iter().map(|part| self.expression(part, in_rule));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.join("|"))
    }
}

/// Names of terminals have capital letters.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

/// A text as a regular expression that matches only this text.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            _ => {
                if character.is_ascii_punctuation() && !matches!(character, '"' | '\'' | '<' | '>' | ',' | '_') {
                    escaped.push('\\');
                }
                escaped.push(character);
            }
        }
    }
    escaped
}
