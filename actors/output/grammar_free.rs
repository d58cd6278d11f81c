//! Grammars for answers that are free text, with calls in it.

use cuelight_engine::constraint::GrammarError;

use super::delta::ToolSpec;
use super::format::{Channels, Format, ToolFormat};
use super::grammar::{Lead, object};
use super::grammar_rules::Grammar;

/// A grammar for free text with calls in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeGrammar {
    /// The grammar, in llguidance's dialect of Lark.
    pub lark: String,
    /// The texts that begin calls. Text without these is free.
    pub triggers: Vec<String>,
}

/// A grammar for free text, in which each trigger of the format begins calls of these tools. `free` are the special tokens that
/// may stand in the text. `None` where a trigger could be a part of usual text.
pub(super) fn free_grammar(
    format: &Format,
    tools: &[ToolSpec],
    parallel: bool,
    special: &[(String, u32)],
    free: &[u32],
) -> Result<Option<FreeGrammar>, GrammarError> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut grammar = Grammar::new(special, tools.iter().any(|tool| tool.is_strict));
    let parts = match (&format.channels, &format.tools) {
        (Some(channels), None) => grammar.free_messages(channels, tools),
        (None, Some(format)) => grammar.free_calls(format, tools, parallel),
        _ => None,
    };
    let Some((triggers, calls)) = parts else { return Ok(None) };
    let calls = grammar.any_of(&calls);
    let other = grammar.other_tokens(&triggers, free);
    let start = match (parallel, other) {
        (true, None) => format!("{calls}* TEXT"),
        (true, Some(other)) => format!("({other} | {calls})* TEXT"),
        (false, None) => format!("TEXT | {calls}"),
        (false, Some(other)) => format!("({other})* (TEXT | {calls})"),
    };
    Ok(Some(FreeGrammar { lark: grammar.finish(&start)?, triggers }))
}

impl Grammar<'_> {
    /// The triggers, and for each of them text up to it and the calls.
    fn free_calls(
        &mut self,
        format: &ToolFormat,
        tools: &[ToolSpec],
        parallel: bool,
    ) -> Option<(Vec<String>, Vec<String>)> {
        let first = format.triggers().next().filter(|trigger| is_distinct(trigger) && format.bare.is_none())?;
        let mut triggers = vec![first.to_owned()];
        let mut calls = vec![self.calls(format, tools, parallel, Lead::Free)?];
        // Models leave out the marker of the section.
        if format.section.is_some() && is_distinct(&format.call_begin) {
            let without = ToolFormat { section: None, ..format.clone() };
            calls.push(self.calls(&without, tools, parallel, Lead::Free)?);
            triggers.push(format.call_begin.clone());
        }
        Some((triggers, calls))
    }

    /// The same for messages. A call is known by its recipient.
    fn free_messages(&mut self, channels: &Channels, tools: &[ToolSpec]) -> Option<(Vec<String>, Vec<String>)> {
        if channels.recipient.is_empty() || channels.tool_prefix.is_empty() {
            return None;
        }
        let trigger = format!("{}{}", channels.recipient, channels.tool_prefix);
        let (channel, end) = (self.literal(&channels.channel), self.literal(&channels.header_end));
        let kind = self.literal("<|constrain|>");
        let mut calls = Vec::new();
        for tool in tools {
            self.enter(tool);
            let (name, arguments) = (self.literal(&tool.name), self.json(&object(&tool.parameters)));
            calls.push(format!("{name} ({channel} \"commentary\")? (\" \"? {kind} \"json\")? {end} {arguments}"));
        }
        let call = self.any_of(&calls);
        let calls = vec![format!("{} {call}", self.until(&trigger))];
        Some((vec![trigger], calls))
    }

    /// Text up to a special token that begins no call, if there are such tokens.
    fn other_tokens(&self, triggers: &[String], free: &[u32]) -> Option<String> {
        let first_tokens = triggers.iter().filter_map(|trigger| match self.next_special(trigger) {
            Some((0, (_, number))) => Some(*number),
            _ => None,
        });
        let first_tokens: Vec<u32> = first_tokens.collect();
        let others = ranges(free.iter().copied().filter(|token| !first_tokens.contains(token)));
        (!others.is_empty()).then(|| format!("TEXT <[{}]>", others.join(",")))
    }
}

/// Whether a marker is hardly a part of usual text.
fn is_distinct(marker: &str) -> bool {
    marker.contains(['<', '[', '`'])
}

/// Ascending numbers as ranges.
fn ranges(numbers: impl Iterator<Item = u32>) -> Vec<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges.into_iter().map(|(first, last)| format!("{first}-{last}")).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar};
    use cuelight_engine::format::tokenizer::Tokenizer;
    use serde_json::json;

    use super::super::output_format::OutputFormat;
    use super::super::samples::{all, format_of, json_format};
    use super::super::table::ENTRIES;
    use super::*;
    use crate::pipeline::simulation::{infill_tokenizer, tokenizer};

    struct Rules {
        tokenizer: Arc<Tokenizer>,
        free: Constraint,
        /// The same, with each mask computed.
        plain: Constraint,
    }

    impl Rules {
        fn of(format: &OutputFormat, parallel: bool) -> Option<Rules> {
            let grammar = format.free_grammar(&tools(), parallel, &[], &[]).unwrap()?;
            Some(Self::compile(tokenizer(), &grammar))
        }

        fn compile(tokenizer: Arc<Tokenizer>, FreeGrammar { lark, triggers }: &FreeGrammar) -> Rules {
            let compiler = ConstraintCompiler::new(tokenizer.clone(), tokenizer.vocab_size());
            let compile = |grammar| compiler.compile(&grammar).unwrap_or_else(|error| panic!("{error}: {lark}"));
            let plain = compile(Grammar::Lark(lark.clone()));
            let free = compile(Grammar::Triggered { lark: lark.clone(), triggers: triggers.clone() });
            Rules { tokenizer, free, plain }
        }

        /// How much of a text is allowed; all of it only if it may end there.
        fn allowed<'a>(&self, text: &'a str) -> &'a str {
            let tokens = self.tokenizer.encode(text, false, true).unwrap();
            let (mut free, mut plain) = (self.free.start(), self.plain.start());
            let mut length = 0;
            for token in tokens {
                let mask = free.mask().unwrap();
                let computed = plain.mask().unwrap();
                let differs = |token: &u32| mask.allows(*token) != computed.allows(*token);
                let different: Vec<u32> = (0..self.tokenizer.vocab_size() as u32).filter(differs).collect();
                assert!(different.is_empty(), "{different:?} after {:?}", text.get(..length));
                if !mask.allows(token) {
                    return &text[..length];
                }
                free.accept(token).unwrap();
                plain.accept(token).unwrap();
                length += self.tokenizer.token_bytes(token, false).len();
            }
            if free.is_accepting() { text } else { "" }
        }
    }

    fn tools() -> Vec<ToolSpec> {
        let schema = json!({
            "type": "object",
            "properties": { "a": { "type": "string" }, "n": { "type": "integer" } },
            "required": ["a", "n"],
            "additionalProperties": false,
        });
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tool = |name: &str, parameters, is_strict| ToolSpec { name: name.to_owned(), parameters, is_strict };
        vec![tool("f", schema, true), tool("g", none, false)]
    }

    /// A text with an argument of the wrong type.
    fn wrong(text: &str) -> String {
        [
            ("\"n\": 1", "\"n\": true"),
            ("n=1", "n=true"),
            ("n:1", "n:true"),
            (">1<", ">true<"),
            (">1]", ">true]"),
            ("\n1\n", "\ntrue\n"),
        ]
        .iter()
        .fold(text.to_owned(), |text, (right, wrong)| text.replace(right, wrong))
    }

    /// Parts of samples that are read, though no grammar has them: other literals, calls in another order or as text.
    const LOOSE: [&str; 3] = ["a='x", r#"{"arguments": {}, "name""#, r#", {"name": "g"}]"#];

    /// How samples begin whose calls begin like usual text, or that have no grammar.
    const NOT_DISTINCT: [&str; 7] =
        [" to=f<", "f\n", "functools", "{\"name", "<|python_", "[f(", "<|tool_call|>[{\"name"];

    #[test]
    fn text_is_free_and_calls_match_their_schema() {
        for (format, sample) in all() {
            let Some(rules) = Rules::of(&format, true) else {
                assert!(NOT_DISTINCT.iter().any(|begin| sample.starts_with(begin)), "{sample}");
                continue;
            };
            for text in ["", "Plain: 1 < 2 [3] {\"a\": \u{e9}}\n"] {
                assert_eq!(rules.allowed(text), text, "{sample}");
            }
            if LOOSE.iter().all(|loose| !sample.contains(loose)) {
                let text = format!("Look: a < b.\n\n{sample}\n\nDone.");
                assert_eq!(rules.allowed(&text), text);
            }
            let text = format!("Look.{}", wrong(sample));
            assert!(rules.allowed(&text).len() < text.len(), "{text}");
        }
    }

    #[test]
    fn calls_repeat_only_if_they_may() {
        let format = json_format("<tool_call>", "</tool_call>");
        let call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
        for (parallel, text, is_allowed) in [
            (true, format!("a{call}b{call}\n{call}"), true),
            (false, format!("a{call}"), true),
            (false, format!("a{call}\n{call}"), false),
            (true, "a<tool_call>b".to_owned(), false),
            (true, call.replace("\"g\"", "\"h\""), false),
            (true, "a<tool_call".to_owned(), true),
        ] {
            let rules = Rules::of(&format, parallel).unwrap();
            assert_eq!(rules.allowed(&text) == text, is_allowed, "{text}");
        }
    }

    #[test]
    fn special_tokens_are_free_unless_they_begin_a_call() {
        let tokenizer = infill_tokenizer();
        let format = json_format("<|fim_prefix|>", "<|fim_suffix|>");
        let special = [("<|fim_prefix|>".to_owned(), 257), ("<|fim_suffix|>".to_owned(), 258)];
        let grammar = format.free_grammar(&tools(), true, &special, &[257, 258, 259]).unwrap().unwrap();
        let rules = Rules::compile(tokenizer, &grammar);
        let call = "<|fim_prefix|>{\"name\": \"g\", \"arguments\": {}}<|fim_suffix|>";
        for (text, is_allowed) in [
            (format!("a<|fim_middle|><|fim_suffix|>b{call}<|fim_middle|>c{call}"), true),
            ("a<|fim_prefix|>b".to_owned(), false),
            (call.replace("{}", "{}<|fim_middle|>"), false),
        ] {
            assert_eq!(rules.allowed(&text) == text, is_allowed, "{text}");
        }
    }

    #[test]
    fn keywords_that_no_grammar_has_are_refused_for_strict_tools_only() {
        let compiler = ConstraintCompiler::new(tokenizer(), tokenizer().vocab_size());
        for entry in ["qwen3-coder", "ministral"].map(|name| ENTRIES.iter().find(|entry| entry.name == name).unwrap()) {
            for (refused, tool) in [(true, 0), (false, 1)] {
                let mut tools = tools();
                tools[tool].parameters["properties"]["n"] = json!({ "type": "integer", "not": { "const": 1 } });
                let grammar = format_of(entry).free_grammar(&tools, true, &[], &[]).unwrap().unwrap();
                assert_eq!(compiler.compile(&Grammar::Lark(grammar.lark)).is_err(), refused, "{}", entry.name);
            }
        }
    }
}
