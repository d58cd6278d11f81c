//! The grammars of texts in elements.

use cuelight_engine::constraint::regex_of_pattern;
use serde_json::Value;

use super::alternatives::{Keywords, alternatives};
use super::coerce::coerce;
use super::format::{Attribute, Tagged};
use super::grammar_rules::Grammar;
use super::schema::Types;
use super::tagged::CDATA;

/// Keywords that say something about texts and that a grammar of texts does not have.
const UNKNOWN: [&str; 9] = ["$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "format", "if", "not", "oneOf"];

/// Any text.
const ANY: &str = "TEXT";

/// Where a value stands.
pub(super) struct Place<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// The schema of all parameters.
    pub root: &'a Value,
    pub format: &'a Tagged,
    /// The marker after the value.
    pub end: &'a str,
}

/// Grammars of values that may be texts.
pub(super) trait Texts {
    /// The texts up to the marker that are read as instances of a schema, with the marker.
    fn text(&mut self, schema: &Value, place: &Place<'_>) -> String;
}

impl Texts for Grammar<'_> {
    fn text(&mut self, schema: &Value, place: &Place<'_>) -> String {
        // An attribute says that the value is a text, whatever it looks like.
        let is_text = place.format.attribute != Attribute::None;
        let types = if is_text { Types::STRING } else { Types::of(schema, place.root) };
        let mut options = alternatives(schema, place.root);
        options.retain(|option| !is_text || Types::of_keywords(option).string);
        let bodies: Vec<String> = options.iter().filter_map(|option| body(self, option, types, place)).collect();
        if bodies.is_empty() {
            self.refuse_impossible(&place.pointer());
        }
        let marker = if place.format.lines { format!("\n{}", place.end) } else { place.end.to_owned() };
        let is_any = bodies.is_empty() || bodies.iter().any(|body| body == ANY);
        match (is_any, place.format.lines) {
            (true, false) => self.until(&marker),
            // The marker ends the value without a line break before it, too.
            (true, true) => self.matching_until(ANY, &marker, &[place.end]),
            (false, _) => {
                let cdata = place.format.cdata.then_some(CDATA);
                let excluded: Vec<&str> = [place.end].into_iter().chain(cdata).collect();
                self.matching_until(&bodies.join(" | "), &marker, &excluded)
            }
        }
    }
}

impl Place<'_> {
    fn pointer(&self) -> String {
        format!("#/properties/{}", self.name)
    }
}

/// The texts that are read as instances of one alternative, as an expression of a terminal. `None` for those that are not
/// written here.
fn body(grammar: &mut Grammar<'_>, option: &Keywords, types: Types, place: &Place<'_>) -> Option<String> {
    let own = Types::of_keywords(option);
    if let Some(Value::Array(choices)) = option.get("enum") {
        let allowed = choices.iter().filter(|choice| own.has(choice));
        let texts: Vec<String> = allowed.filter_map(|choice| choice_text(choice, types, place)).collect();
        let choices = (!texts.is_empty()).then(|| format!("({})", texts.join(" | ")))?;
        return Some(with_limits(grammar, option, Some(choices), place));
    }
    match own {
        Types::STRING => Some(with_limits(grammar, option, None, place)),
        _ if option.keys().any(|keyword| keyword != "type") => {
            grammar.refuse(&place.pointer());
            Some(ANY.to_owned())
        }
        _ => plain(own),
    }
}

/// The texts of a type without other keywords.
fn plain(types: Types) -> Option<String> {
    let text = match types {
        Types { string: true, .. } => ANY,
        Types { null: true, .. } => "\"null\"",
        Types { boolean: true, .. } => "/true|false/",
        Types { integer: true, .. } => "/-?(0|[1-9][0-9]{0,17})/",
        Types { number: true, .. } => r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
        _ => return None,
    };
    Some(text.to_owned())
}

/// The text that is read as a value, in quotation marks. `None` if no text is.
fn choice_text(choice: &Value, types: Types, place: &Place<'_>) -> Option<String> {
    let text = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
    let is_read = serde_json::from_str::<Value>(&coerce(&text, types)).is_ok_and(|value| value == *choice);
    (is_read && !text.contains(place.end)).then(|| Value::from(text).to_string())
}

/// Some texts, or any, within the limits that a schema sets.
fn with_limits(grammar: &mut Grammar<'_>, option: &Keywords, texts: Option<String>, place: &Place<'_>) -> String {
    let pattern = option.get("pattern").and_then(Value::as_str);
    let whole = pattern.and_then(regex_of_pattern);
    if pattern.is_some() && whole.is_none() {
        grammar.refuse(&format!("{}/pattern", place.pointer()));
    }
    if let Some(keyword) = UNKNOWN.iter().find(|keyword| option.contains_key(**keyword)) {
        grammar.refuse(&format!("{}/{keyword}", place.pointer()));
    }
    let mut parts = Vec::from_iter(texts);
    parts.extend(length(option));
    parts.extend(whole.map(|whole| format!("/{whole}/")));
    if parts.is_empty() { ANY.to_owned() } else { format!("({})", parts.join(" & ")) }
}

fn length(option: &Keywords) -> Option<String> {
    let limit = |keyword: &str| option.get(keyword).and_then(Value::as_u64);
    let (least, most) = (limit("minLength").unwrap_or_default(), limit("maxLength"));
    let is_limited = least > 0 || most.is_some();
    is_limited.then(|| format!("/(?s:.{{{least},{}}})/", most.map(|most| most.to_string()).unwrap_or_default()))
}
