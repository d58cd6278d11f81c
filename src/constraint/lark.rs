//! The rules of a grammar under construction, in llguidance's dialect of Lark.

use std::fmt::Write;

use serde_json::Value;

use crate::engine::TokenId;

/// The rules of a grammar under construction. A rule may refer to `WS`, some white space, and to `TEXT`, any text.
#[derive(Debug)]
pub struct LarkRules<'a> {
    /// Spellings of special tokens with their numbers. Texts in a grammar never match special tokens.
    special: &'a [(String, TokenId)],
    rules: String,
    count: usize,
}

impl<'a> LarkRules<'a> {
    /// No rules. `special` are the special tokens that may be named.
    #[must_use]
    pub fn new(special: &'a [(String, TokenId)]) -> Self {
        LarkRules { special, rules: String::new(), count: 0 }
    }

    /// A text as it must stand in a rule: special tokens by number, all else in quotation marks.
    #[must_use]
    pub fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, (spelling, number))) = self.next_special(rest) {
            parts.extend((at > 0).then(|| Value::from(&rest[..at]).to_string()));
            parts.push(format!("<[{number}]>"));
            rest = &rest[at + spelling.len()..];
        }
        parts.extend((!rest.is_empty()).then(|| Value::from(rest).to_string()));
        parts.join(" ")
    }

    /// The first special token in a text, the longest of those that begin there.
    #[must_use]
    pub fn next_special(&self, text: &str) -> Option<(usize, &(String, TokenId))> {
        let found = self.special.iter().filter(|(spelling, _)| !spelling.is_empty());
        let found = found.filter_map(|token| text.find(&token.0).map(|at| (at, token)));
        found.min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.0.len())))
    }

    /// Adds a rule, and returns its name. `options` stand behind the name.
    pub fn rule(&mut self, options: &str, body: &str) -> String {
        self.count += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "r{}{options}: {body}", self.count);
        format!("r{}", self.count)
    }

    /// Any text up to this marker, with the marker.
    pub fn until(&mut self, marker: &str) -> String {
        self.up_to(marker, "TEXT")
    }

    /// The texts of an expression of a terminal up to this marker, with the marker. None of `excluded` stands in the text.
    pub fn matching_until(&mut self, text: &str, marker: &str, excluded: &[&str]) -> String {
        // What begins with a special token is in no text.
        let excluded = excluded.iter().filter(|part| self.next_special(part).is_none_or(|(at, _)| at > 0));
        let excluded: Vec<String> = excluded.map(|part| format!(" & ~(TEXT {} TEXT)", Value::from(*part))).collect();
        let terminal = self.add(&format!("T{}", self.count + 1), &format!("({text}){}", excluded.concat()));
        self.up_to(marker, &terminal)
    }

    fn up_to(&mut self, marker: &str, text: &str) -> String {
        let first = self.next_special(marker).map(|(at, _)| at);
        if first == Some(0) {
            return format!("{text} {}", self.literal(marker));
        }
        let (before, rest) = marker.split_at(first.unwrap_or(marker.len()));
        let rule = self.rule(&format!("[suffix={}]", Value::from(before)), text);
        format!("{rule} {}", self.literal(rest))
    }

    fn add(&mut self, name: &str, body: &str) -> String {
        self.count += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        name.to_owned()
    }

    /// The grammar with these rules that begins with `start`.
    #[must_use]
    pub fn finish(&self, start: &str) -> String {
        format!("start: {start}\nWS: /[ \\n\\t]{{0,16}}/\nTEXT: /(?s:.*)/\n{}", self.rules)
    }
}
