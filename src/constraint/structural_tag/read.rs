//! Reads structural tags.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::super::error::GrammarError;
use super::super::{gbnf, schema};
use super::format::{Format, Triggered};
use super::place::Place;

/// Most levels of formats within formats.
const MAX_DEPTH: usize = 32;

/// Reads formats, and collects the grammars in them.
#[derive(Default)]
pub(super) struct Reader {
    pub grammars: Vec<GrammarWithLexer>,
}

impl Reader {
    /// A format of xgrammar.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] with the place of what is malformed or cannot be enforced.
    pub fn format(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        if at.depth > 2 * MAX_DEPTH {
            return Err(at.refused(format!("there are more than {MAX_DEPTH} levels of formats")));
        }
        Ok(match at.need("type")?.text()? {
            "const_string" => Format::Text(at.need("value")?.text()?.to_owned()),
            "any_text" => {
                at.refuse_options(&["excludes", "max_chars"])?;
                Format::Any(at.number("max_tokens")?)
            }
            "json_schema" => {
                if let Some(style) = at.get("style").filter(|style| style.value != "json") {
                    return Err(
                        style.refused("schemas are enforced for JSON only; use `tools` for other notations of calls")
                    );
                }
                at.refuse_options(&["excludes", "any_order", "max_whitespace_cnt"])?;
                self.schema(&at.need("json_schema")?)?
            }
            "regex" => {
                at.refuse_options(&["excludes"])?;
                self.grammar(TopLevelGrammar::from_regex(at.need("pattern")?.text()?))
            }
            "grammar" => {
                let lark = gbnf::to_lark(at.need("grammar")?.text()?)?;
                self.grammar(TopLevelGrammar::from_lark(lark))
            }
            "sequence" => Format::Sequence(self.formats(&at.need("elements")?)?),
            "or" => Format::Or(self.formats(&at.need("elements")?)?),
            "optional" => self.repeat(at, 0, Some(1))?,
            "star" => self.repeat(at, 0, None)?,
            "plus" => self.repeat(at, 1, None)?,
            "repeat" => self.bounded(at)?,
            "tag" => Format::Sequence(self.tag(at)?.into()),
            "triggered_tags" => self.triggered_tags(at)?,
            "tags_with_separator" => self.separated(at)?,
            "dispatch" => self.dispatch(at)?,
            other => return Err(at.refused(format!("the format `{other}` is not supported"))),
        })
    }

    fn formats(&mut self, at: &Place<'_>) -> Result<Vec<Format>, GrammarError> {
        at.list()?.iter().map(|part| self.format(part)).collect()
    }

    fn repeat(&mut self, at: &Place<'_>, min: u64, max: Option<u64>) -> Result<Format, GrammarError> {
        Ok(Format::Repeat { format: Box::new(self.format(&at.need("content")?)?), min, max })
    }

    fn bounded(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        let min = at.number("min")?.unwrap_or(0);
        let is_unbounded = at.get("max").is_some_and(|max| max.value.as_i64() == Some(-1));
        let max = if is_unbounded { None } else { at.number("max")? };
        if max.is_some_and(|max| max < min) {
            return Err(at.refused("`max` must not be smaller than `min`"));
        }
        self.repeat(at, min, max)
    }

    fn schema(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        let schema = schema::prepare(at.value).map_err(|error| within(at, error))?;
        Ok(self.grammar(TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema))))
    }

    /// Keeps a grammar, and refers to it by a name of its own.
    fn grammar(&mut self, grammar: TopLevelGrammar) -> Format {
        let name = format!("part{}", self.grammars.len());
        for mut grammar in grammar.grammars {
            grammar.name = Some(name.clone());
            self.grammars.push(grammar);
        }
        Format::Grammar(name)
    }

    /// The text that begins a tag, its content, and the text that ends it.
    fn tag(&mut self, at: &Place<'_>) -> Result<[Format; 3], GrammarError> {
        let begin = Format::Text(at.need("begin")?.text()?.to_owned());
        let content = match at.get("schema") {
            Some(schema) => self.schema(&schema)?,
            None => self.format(&at.need("content")?)?,
        };
        let end = at.need("end")?;
        let end = match end.value {
            Value::Array(_) => {
                let ends = end.list()?;
                let ends = ends.iter().map(|end| Ok(Format::Text(end.text()?.to_owned())));
                Format::Or(ends.collect::<Result<_, GrammarError>>()?)
            }
            _ => Format::Text(end.text()?.to_owned()),
        };
        Ok([begin, content, end])
    }

    /// vLLM's older notation: tags with schemas, and the texts that begin them.
    ///
    /// # Errors
    /// As for [`Self::format`].
    pub fn structures(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        let rules = self.rules(&at.need("structures")?, &at.need("triggers")?)?;
        Ok(Format::Triggered(Triggered { rules, is_demanded: false, is_once: false }))
    }

    fn triggered_tags(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        at.refuse_options(&["excludes"])?;
        let rules = self.rules(&at.need("tags")?, &at.need("triggers")?)?;
        let (is_demanded, is_once) = (at.flag("at_least_one")?, at.flag("stop_after_first")?);
        Ok(Format::Triggered(Triggered { rules, is_demanded, is_once }))
    }

    /// What may follow each trigger: the rest of the tags that begin with it.
    fn rules(&mut self, tags: &Place<'_>, triggers: &Place<'_>) -> Result<Vec<(String, Format)>, GrammarError> {
        let mut rules: Vec<(String, Vec<Format>)> = Vec::new();
        for text in triggers.list()? {
            rules.push((trigger(&text)?, Vec::new()));
        }
        for tag in tags.list()? {
            let [begin, content, end] = self.tag(&tag)?;
            let Format::Text(begin) = begin else { continue };
            let rule = rules.iter_mut().find_map(|(trigger, tags)| Some((begin.strip_prefix(&**trigger)?, tags)));
            let (rest, tags) = rule.ok_or_else(|| tag.refused("its `begin` must begin with one of the triggers"))?;
            tags.push(Format::Sequence(vec![Format::Text(rest.to_owned()), content, end]));
        }
        match rules.iter().find(|(_, tags)| tags.is_empty()) {
            Some((trigger, _)) => Err(triggers.refused(format!("no tag begins with the trigger {trigger:?}"))),
            None => Ok(rules.into_iter().map(|(trigger, tags)| (trigger, Format::Or(tags))).collect()),
        }
    }

    fn separated(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        let tags = at.need("tags")?.list()?;
        let tags =
            tags.iter().map(|tag| Ok(Format::Sequence(self.tag(tag)?.into()))).collect::<Result<_, GrammarError>>()?;
        Ok(Format::Separated {
            format: Box::new(Format::Or(tags)),
            separator: at.need("separator")?.text()?.to_owned(),
            min: u64::from(at.flag("at_least_one")?),
            max: at.flag("stop_after_first")?.then_some(1),
        })
    }

    /// Free text, in which each pattern is followed by its format.
    fn dispatch(&mut self, at: &Place<'_>) -> Result<Format, GrammarError> {
        at.refuse_options(&["excludes"])?;
        let mut rules = Vec::new();
        for rule in at.need("rules")?.list()? {
            let pair = rule.list()?;
            let [pattern, format] = pair.as_slice() else {
                return Err(rule.refused("this must be a text and a format"));
            };
            rules.push((trigger(pattern)?, self.format(format)?));
        }
        let is_once = at.get("loop").is_some_and(|repeats| repeats.value == &json!(false));
        Ok(Format::Triggered(Triggered { rules, is_demanded: false, is_once }))
    }
}

fn trigger(at: &Place<'_>) -> Result<String, GrammarError> {
    match at.text()? {
        "" => Err(at.refused("a text that triggers a format must not be empty")),
        text => Ok(text.to_owned()),
    }
}

/// The error of a schema with its place in the whole.
fn within(at: &Place<'_>, error: GrammarError) -> GrammarError {
    match error {
        GrammarError::Refused { pointer: Some(pointer), message } => {
            let pointer = format!("{}{}", at.pointer, pointer.trim_start_matches('#'));
            GrammarError::Refused { pointer: Some(pointer), message }
        }
        GrammarError::Refused { pointer: None, message } => at.refused(message),
        other => other,
    }
}
