//! What a text has to be, and the rules of a grammar for it.

use super::super::error::GrammarError;
use super::super::lark::LarkRules;

/// What a text has to be.
#[derive(Debug)]
pub(super) enum Format {
    Text(String),
    /// The grammar with this name.
    Grammar(String),
    /// Any text, of at most this number of tokens.
    Any(Option<u64>),
    Sequence(Vec<Format>),
    Or(Vec<Format>),
    Repeat {
        format: Box<Format>,
        min: u64,
        max: Option<u64>,
    },
    Triggered(Triggered),
    /// Formats with a text between each two.
    Separated {
        format: Box<Format>,
        separator: String,
        min: u64,
        max: Option<u64>,
    },
}

/// Free text, in which each of some texts must be followed by a format.
#[derive(Debug)]
pub(super) struct Triggered {
    /// The texts, each with what may follow it.
    pub rules: Vec<(String, Format)>,
    /// The text begins with one of them.
    pub is_demanded: bool,
    /// Nothing follows the first.
    pub is_once: bool,
}

impl Format {
    /// A Lark expression for it.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] where free text could not be told apart from what follows it.
    pub fn expression(&self, rules: &mut LarkRules<'_>) -> Result<String, GrammarError> {
        Ok(match self {
            Format::Text(text) if text.is_empty() => "\"\"".to_owned(),
            Format::Text(text) => rules.literal(text),
            Format::Grammar(name) => format!("@{name}"),
            Format::Any(None) => "TEXT".to_owned(),
            Format::Any(Some(tokens)) => rules.rule(&format!("[max_tokens={tokens}]"), "TEXT"),
            Format::Sequence(parts) => sequence(parts, rules)?,
            Format::Or(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| part.expression(rules)).collect::<Result<_, _>>()?;
                format!("({})", parts.join(" | "))
            }
            Format::Repeat { format, min, max } => {
                let body = format.expression(rules)?;
                repeated(&rules.rule("", &body), *min, *max)
            }
            Format::Triggered(triggered) => triggered.expression(rules)?,
            Format::Separated { format, separator, min, max } => {
                let body = format.expression(rules)?;
                let one = rules.rule("", &body);
                let more = format!("({} {one})", rules.literal(separator));
                let more = repeated(&more, min.saturating_sub(1), max.map(|max| max.saturating_sub(1)));
                let all = format!("({one} {more})");
                if *min == 0 { format!("{all}?") } else { all }
            }
        })
    }

    /// Any text, and then this format, where that can be told apart.
    fn after_text(&self, rules: &mut LarkRules<'_>) -> Result<String, GrammarError> {
        match self {
            Format::Text(text) if !text.is_empty() => Ok(rules.until(text)),
            Format::Or(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| part.after_text(rules)).collect::<Result<_, _>>()?;
                Ok(format!("({})", parts.join(" | ")))
            }
            Format::Sequence(parts) if !parts.is_empty() => {
                Ok(format!("{} {}", parts[0].after_text(rules)?, sequence(&parts[1..], rules)?))
            }
            _ => Err(GrammarError::refused("`any_text` must come last, or a fixed text must follow it")),
        }
    }

    /// Whether it ends with text that is free, so that nothing can follow.
    fn ends_free(&self) -> bool {
        match self {
            Format::Any(None) => true,
            Format::Triggered(triggered) => !(triggered.is_demanded && triggered.is_once),
            Format::Sequence(parts) => parts.last().is_some_and(Format::ends_free),
            Format::Or(parts) => parts.iter().any(Format::ends_free),
            Format::Repeat { format, .. } | Format::Separated { format, .. } => format.ends_free(),
            Format::Text(_) | Format::Grammar(_) | Format::Any(Some(_)) => false,
        }
    }

    /// The texts up to which all of it is free, if it is free text with triggers.
    pub fn triggers(&self) -> Vec<String> {
        match self {
            Format::Triggered(triggered) if !triggered.is_demanded => {
                triggered.rules.iter().map(|(trigger, _)| trigger.clone()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The parts one after the other.
fn sequence(parts: &[Format], rules: &mut LarkRules<'_>) -> Result<String, GrammarError> {
    let mut expressions = Vec::new();
    let mut rest = parts;
    while let Some((part, after)) = rest.split_first() {
        rest = after;
        expressions.push(match (part, after.split_first()) {
            (Format::Any(None), Some((next, after))) => {
                rest = after;
                next.after_text(rules)?
            }
            (part, Some(_)) if part.ends_free() => {
                return Err(GrammarError::refused("nothing can follow a part that ends with free text"));
            }
            (part, _) => part.expression(rules)?,
        });
    }
    Ok(expressions.join(" "))
}

fn repeated(body: &str, min: u64, max: Option<u64>) -> String {
    match (min, max) {
        (0, Some(1)) => format!("{body}?"),
        (0, None) => format!("{body}*"),
        (1, None) => format!("{body}+"),
        (min, None) => format!("{body}{{{min},}}"),
        (min, Some(max)) => format!("{body}{{{min},{max}}}"),
    }
}

impl Triggered {
    fn expression(&self, rules: &mut LarkRules<'_>) -> Result<String, GrammarError> {
        let (mut direct, mut after_text) = (Vec::new(), Vec::new());
        for (trigger, format) in &self.rules {
            let body = format.expression(rules)?;
            let body = rules.rule("", &body);
            direct.push(format!("{} {body}", rules.literal(trigger)));
            after_text.push(format!("{} {body}", rules.until(trigger)));
        }
        let direct = rules.rule("", &direct.join(" | "));
        let after_text = rules.rule("", &after_text.join(" | "));
        Ok(match (self.is_demanded, self.is_once) {
            (true, true) => direct,
            (true, false) => format!("({direct} {after_text}* TEXT)"),
            (false, true) => format!("(TEXT | {after_text})"),
            (false, false) => format!("({after_text}* TEXT)"),
        })
    }
}
