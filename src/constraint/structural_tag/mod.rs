//! Structural tags: fixed texts, free text, and parts that match schemas or grammars.
//!
//! Two notations are read: vLLM's `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and the formats of xgrammar,
//! `{"format": {"type": "triggered_tags", ...}}`. What the library cannot enforce is refused with its place.

mod format;
mod place;
mod read;
#[cfg(test)]
mod tests;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use self::place::Place;
use self::read::Reader;
use super::error::GrammarError;
use super::lark::LarkRules;
use super::prepared::Prepared;
use super::schema;
use crate::engine::TokenId;

/// The grammar of a structural tag. `special` are the special tokens that its texts may name.
///
/// # Errors
/// [`GrammarError::Refused`] when it is malformed, or has a part that cannot be enforced.
pub(super) fn prepare(tag: &Value, special: &[(String, TokenId)]) -> Result<Prepared, GrammarError> {
    let mut reader = Reader::default();
    let format = match (tag.get("format"), tag.get("structures")) {
        (Some(format), None) => reader.format(&Place::root(format).member("format"))?,
        (None, Some(_)) => reader.structures(&Place::root(tag))?,
        _ => return Err(Place::root(tag).refused("a structural tag needs `format`, or `structures` and `triggers`")),
    };
    let mut rules = LarkRules::new(special);
    let start = format.expression(&mut rules)?;
    let mut grammar = TopLevelGrammar::from_lark(rules.finish(&start));
    grammar.grammars.extend(reader.grammars);
    Ok(Prepared { grammar, triggers: format.triggers() })
}

/// The place that the library's error message is about, if it is in one of the schemas.
pub(super) fn locate(tag: &Value, message: &str) -> Option<String> {
    let mut schemas = Vec::new();
    find_schemas(tag, "#", &mut schemas);
    let found = schemas.iter().find_map(|(value, at)| Some((schema::locate(value, message)?, at)));
    found.map(|(pointer, at)| format!("{at}{}", pointer.trim_start_matches('#')))
}

fn find_schemas<'a>(value: &'a Value, at: &str, found: &mut Vec<(&'a Value, String)>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let at = format!("{at}/{name}");
                match name.as_str() {
                    "json_schema" | "schema" => found.push((member, at)),
                    _ => find_schemas(member, &at, found),
                }
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| find_schemas(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}
