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
        match self.next_special(marker) {
            Some((0, _)) => format!("TEXT {}", self.literal(marker)),
            Some((at, _)) => {
                let rule = self.rule(&format!("[suffix={}]", Value::from(&marker[..at])), "TEXT");
                format!("{rule} {}", self.literal(&marker[at..]))
            }
            None => self.rule(&format!("[suffix={}]", Value::from(marker)), "TEXT"),
        }
    }

    /// The grammar with these rules that begins with `start`.
    #[must_use]
    pub fn finish(&self, start: &str) -> String {
        format!("start: {start}\nWS: /[ \\n\\t]{{0,16}}/\nTEXT: /(?s:.*)/\n{}", self.rules)
    }
}
