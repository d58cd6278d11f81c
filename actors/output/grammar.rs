//! Grammars for calls that a request demands, in llguidance's dialect of Lark.

use cuelight_engine::constraint::GrammarError;
use serde_json::{Value, json};

use super::delta::ToolSpec;
use super::format::{Arguments, Body, Channels, Format, JsonKeys, Named, ToolFormat};
use super::grammar_json::{escaped, rebased};
use super::grammar_rules::Grammar;
use super::grammar_values::Values;

/// Where calls stand in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    /// The answer begins with them.
    Demanded,
    /// Any text comes before the first marker of each.
    Free,
}

/// A grammar for one call of these tools, or several. `special` are the tokens that a text in the grammar cannot match. With
/// `may_reason` a message with reasoning may come before.
pub(super) fn call_grammar(
    format: &Format,
    tools: &[ToolSpec],
    parallel: bool,
    special: &[(String, u32)],
    may_reason: bool,
) -> Result<Option<String>, GrammarError> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut grammar = Grammar::new(special, tools.iter().any(|tool| tool.is_strict));
    let start = match (&format.channels, &format.tools) {
        (Some(channels), None) => {
            let calls = grammar.messages(channels, tools, parallel);
            if may_reason { grammar.after_reasoning(channels, &calls) } else { calls }
        }
        (None, Some(format)) => match grammar.calls(format, tools, parallel, Lead::Demanded) {
            Some(calls) => calls,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    grammar.finish(&start).map(Some)
}

/// A grammar for an answer that is a text of the grammar `@answer`, or calls of these tools. `None` if it is just the text.
pub(super) fn grammar_around(
    format: &Format,
    tools: &[ToolSpec],
    parallel: bool,
    special: &[(String, u32)],
    may_reason: bool,
) -> Result<Option<String>, GrammarError> {
    let mut grammar = Grammar::new(special, tools.iter().any(|tool| tool.is_strict));
    let start = match (&format.channels, &format.tools) {
        (Some(channels), tool_format) => {
            let text = format!("{} @answer", grammar.literal(&channels.text_header()));
            let calls =
                (tool_format.is_none() && !tools.is_empty()).then(|| grammar.messages(channels, tools, parallel));
            let any: Vec<String> = calls.into_iter().chain([text]).collect();
            let any = any.join(" | ");
            if may_reason { grammar.after_reasoning(channels, &any) } else { any }
        }
        (None, Some(format)) if !tools.is_empty() => match grammar.calls(format, tools, parallel, Lead::Demanded) {
            Some(calls) => format!("{calls} | @answer"),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    grammar.finish(&start).map(Some)
}

impl Grammar<'_> {
    pub(super) fn any_of(&mut self, bodies: &[String]) -> String {
        self.rule("", &bodies.join(" | "))
    }

    /// The calls of an answer; with [`Lead::Free`], those that one marker begins.
    pub(super) fn calls(
        &mut self,
        format: &ToolFormat,
        tools: &[ToolSpec],
        parallel: bool,
        lead: Lead,
    ) -> Option<String> {
        let call = match &format.body {
            Body::Json(keys) if keys.array => return Some(self.array(format, keys, tools, parallel, lead)),
            Body::Json(keys) => self.json_calls(keys, tools),
            Body::Named(named) => self.named_calls(format, named, tools)?,
            Body::Python => return Some(self.python(format, tools, parallel, lead)),
        };
        let is_json = matches!(format.body, Body::Json(_));
        let end: Vec<String> = format.call_end.iter().map(|end| self.literal(end)).collect();
        let end = if is_json || !is_tagged(format) { end.join(" WS ") } else { String::new() };
        let begin = match &format.section {
            _ if format.bare.is_some() => String::new(),
            Some(_) => self.literal(&format.call_begin),
            None => self.marker(&format.call_begin, lead),
        };
        let space = if is_json { "WS" } else { "" };
        let between = if end.is_empty() { "" } else { "WS" };
        let call = self.rule("", &format!("{begin} {space} {call} {between} {end}"));
        // Calls that only a separator divides cannot be told apart from text.
        let repeats = parallel && (!begin.is_empty() || !end.is_empty());
        // After free text, each marker begins calls of its own.
        let is_one = lead == Lead::Free && (format.section.is_none() || format.section_per_call);
        Some(match &format.section {
            _ if !repeats || is_one => self.in_section(format, &call, lead),
            Some(_) if format.section_per_call => {
                let one = self.in_section(format, &call, lead);
                let one = self.rule("", &one);
                format!("{one} (WS {one})*")
            }
            _ => self.in_section(format, &format!("{call} (WS {call})*"), lead),
        })
    }

    fn in_section(&mut self, format: &ToolFormat, calls: &str, lead: Lead) -> String {
        match &format.section {
            Some((begin, end)) => format!("{} WS {calls} WS {}", self.marker(begin, lead), self.literal(end)),
            None => calls.to_owned(),
        }
    }

    /// The first marker of calls.
    fn marker(&mut self, marker: &str, lead: Lead) -> String {
        match lead {
            Lead::Demanded => self.literal(marker),
            Lead::Free => self.until(marker),
        }
    }

    /// A call of any of the tools.
    fn json_calls(&mut self, keys: &JsonKeys, tools: &[ToolSpec]) -> String {
        let (strict, others): (Vec<ToolSpec>, Vec<ToolSpec>) = tools.iter().cloned().partition(|tool| tool.is_strict);
        let mut calls = Vec::new();
        for (is_strict, tools) in [(true, strict), (false, others)] {
            if !tools.is_empty() {
                self.set_strict(is_strict);
                calls.push(self.json(&any_call(keys, &tools)));
            }
        }
        self.any_of(&calls)
    }

    fn array(
        &mut self,
        format: &ToolFormat,
        keys: &JsonKeys,
        tools: &[ToolSpec],
        parallel: bool,
        lead: Lead,
    ) -> String {
        let call = self.json_calls(keys, tools);
        let more = if parallel { format!("(WS \",\" WS {call})*") } else { String::new() };
        let end: Vec<String> = format.call_end.iter().map(|end| format!("WS {}", self.literal(end))).collect();
        let begin = self.marker(&format.call_begin, lead);
        format!("{begin} WS \"[\" WS {call} {more} WS \"]\" {}", end.join(" "))
    }

    /// The calls of all tools, each from its name to its end.
    fn named_calls(&mut self, format: &ToolFormat, named: &Named, tools: &[ToolSpec]) -> Option<String> {
        let mut calls = Vec::new();
        for tool in tools {
            self.enter(tool);
            let head = self.head(named, &tool.name);
            let arguments = match &named.arguments {
                Arguments::Json => self.json(&object(&tool.parameters)),
                Arguments::Quoted(marker) => self.quoted(&tool.parameters, marker),
                Arguments::Tagged(tagged) => {
                    let parameters = self.tagged(&tool.parameters, tagged)?;
                    let end: Vec<String> = format.call_end.iter().map(|end| self.literal(end)).collect();
                    format!("WS {parameters} {}", end.join(" "))
                }
            };
            calls.push(self.rule("", &format!("{head} {arguments}")));
        }
        Some(self.any_of(&calls))
    }

    fn head(&self, named: &Named, name: &str) -> String {
        // White space is left to the model.
        let end = named.name_end.first().filter(|end| !end.trim().is_empty());
        let end = end.map(|end| self.literal(end)).unwrap_or_default();
        if named.name_is_id {
            return format!("{} /[0-9]{{1,3}}/ {end}", self.literal(&format!("functions.{name}:")));
        }
        let name = self.literal(name);
        if let Some(id_end) = &named.id_end {
            return format!("/[a-z0-9]{{1,16}}/ {} {name} {end}", self.literal(id_end));
        }
        match (&named.id_begin, &named.head_end) {
            (Some(id), _) => format!("{name} {} /[a-zA-Z0-9]{{9}}/ {end}", self.literal(id)),
            (None, Some(head_end)) => {
                format!("{name} {end} /( index=\"[0-9]{{1,3}}\")?/ {}", self.literal(head_end))
            }
            _ => format!("{name} {end}"),
        }
    }

    fn python(&mut self, format: &ToolFormat, tools: &[ToolSpec], parallel: bool, lead: Lead) -> String {
        let mut calls = Vec::new();
        for tool in tools {
            self.enter(tool);
            let arguments = self.python_arguments(&tool.parameters);
            calls.push(format!("{} {arguments} \")\"", self.literal(&format!("{}(", tool.name))));
        }
        let call = self.any_of(&calls);
        let more = if parallel { format!("(\",\" WS {call})*") } else { String::new() };
        let list = format!("\"[\" {call} {more} \"]\"");
        if format.bare.is_some() { list } else { self.in_section(format, &list, lead) }
    }

    /// Messages with calls.
    fn messages(&mut self, channels: &Channels, tools: &[ToolSpec], parallel: bool) -> String {
        let (begin, end) = (self.literal(&channels.begin), self.literal(&channels.header_end));
        let mut calls = Vec::new();
        for tool in tools {
            self.enter(tool);
            let arguments = self.json(&object(&tool.parameters));
            calls.push(if channels.recipient.is_empty() {
                format!("{} {end} {arguments}", self.literal(&tool.name))
            } else {
                let to = self.literal(&format!("{}{}{}", channels.recipient, channels.tool_prefix, tool.name));
                let channel = self.literal(&channels.channel);
                let kind = self.literal("<|constrain|>");
                let to_first = format!("\" \" {to} {channel} \"commentary\"");
                let to_last = format!("{channel} \"commentary \" {to}");
                format!("({to_first} | {to_last}) (\" \"? {kind} \"json\")? {end} {arguments}")
            });
        }
        let call = self.any_of(&calls);
        if parallel && channels.beginnings.is_none() { format!("{call} ({begin} {call})*") } else { call }
    }

    /// What may come after a message with reasoning, if the model wants one.
    fn after_reasoning(&mut self, channels: &Channels, rest: &str) -> String {
        match (&channels.beginnings, channels.ends.first()) {
            (Some((reasoning, _)), Some(message_end)) => {
                let reasoning = self.literal(reasoning);
                let thought = self.until(&format!("{message_end}{}assistant", channels.begin));
                format!("({reasoning} {thought})? ({rest})")
            }
            _ => rest.to_owned(),
        }
    }
}

fn is_tagged(format: &ToolFormat) -> bool {
    matches!(&format.body, Body::Named(Named { arguments: Arguments::Tagged(_), .. }))
}

/// The schema of a call of any of the tools.
fn any_call(keys: &JsonKeys, tools: &[ToolSpec]) -> Value {
    if let [tool] = tools {
        return call_schema(keys, tool, "#");
    }
    let call = |(index, tool)| call_schema(keys, tool, &format!("#/anyOf/{index}"));
    json!({"anyOf": tools.iter().enumerate().map(call).collect::<Vec<_>>()})
}

fn call_schema(keys: &JsonKeys, tool: &ToolSpec, place: &str) -> Value {
    let key = if keys.name_is_key { tool.name.as_str() } else { keys.arguments.as_str() };
    let place = format!("{place}/properties/{}", escaped(key));
    let arguments = (key, rebased(&object(&tool.parameters), &place));
    let name = (keys.name.as_str(), json!({"const": tool.name}));
    match &keys.id {
        _ if keys.name_is_key => closed(&[arguments]),
        None => closed(&[name, arguments]),
        // Models leave out an id that comes last.
        Some(id) if keys.id_last => {
            let mut call = closed(&[name, arguments]);
            call["properties"][id] = id_schema();
            call
        }
        Some(id) => closed(&[(id, id_schema()), name, arguments]),
    }
}

fn id_schema() -> Value {
    json!({"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"})
}

/// An object with exactly these properties.
fn closed(properties: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = properties.iter().map(|(key, _)| *key).collect();
    let properties: serde_json::Map<String, Value> =
        properties.iter().map(|(key, schema)| ((*key).to_owned(), schema.clone())).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The schema of arguments, which are an object even if the schema does not say so.
pub(super) fn object(schema: &Value) -> Value {
    match schema.as_object() {
        Some(keys) if keys.contains_key("type") => schema.clone(),
        Some(keys) if keys.is_empty() => json!({"type": "object"}),
        Some(keys) => {
            let mut keys = keys.clone();
            keys.insert("type".to_owned(), json!("object"));
            Value::Object(keys)
        }
        None => json!({"type": "object"}),
    }
}
