//! Translates grammars in llama.cpp's notation (GBNF) to Lark.
//!
//! Source: the description of the notation in llama.cpp's `grammars/README.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

use super::error::GrammarError;

/// A part of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// The name of a rule. `true`: its definition begins here.
    Name(String, bool),
    Literal(String),
    /// A class of characters as a regular expression.
    Class(String),
    /// What is written in the same way in Lark: parentheses, `|`, and repetitions.
    Same(String),
}

/// The grammar in Lark, with the rule `start` for `root`.
///
/// # Errors
/// [`GrammarError::Refused`] with the reason when it is malformed.
pub(super) fn to_lark(gbnf: &str) -> Result<String, GrammarError> {
    let parts = Reader { chars: gbnf.chars().peekable() }.parts()?;
    let mut names = BTreeMap::from([("root".to_owned(), "start".to_owned())]);
    for part in &parts {
        if let Part::Name(name, true) = part {
            let number = names.len();
            names.entry(name.clone()).or_insert_with(|| format!("rule_{number}"));
        }
    }
    if !parts.contains(&Part::Name("root".to_owned(), true)) {
        return Err(GrammarError::refused("the grammar has no rule `root`"));
    }
    let mut lark = String::new();
    for part in &parts {
        write_part(part, &names, &mut lark)?;
    }
    Ok(lark)
}

fn write_part(part: &Part, names: &BTreeMap<String, String>, lark: &mut String) -> Result<(), GrammarError> {
    // Writing to a string cannot fail.
    let _ = match part {
        Part::Name(name, defines) => {
            let known = names.get(name);
            let name = known.ok_or_else(|| GrammarError::refused(format!("the rule `{name}` is not defined")))?;
            if *defines { write!(lark, "\n{name}:") } else { write!(lark, " {name}") }
        }
        Part::Literal(text) => write!(lark, " {}", Value::from(text.as_str())),
        Part::Class(regex) => write!(lark, " /{regex}/"),
        Part::Same(text) if text.starts_with(['(', '|', ')']) => write!(lark, " {text}"),
        Part::Same(text) => write!(lark, "{text}"),
    };
    Ok(())
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    fn parts(mut self) -> Result<Vec<Part>, GrammarError> {
        let mut parts = Vec::new();
        while let Some(&next) = self.chars.peek() {
            match next {
                '#' => while self.chars.next_if(|&c| c != '\n').is_some() {},
                c if c.is_whitespace() => drop(self.chars.next()),
                '"' => parts.push(Part::Literal(self.literal()?)),
                '[' => parts.push(Part::Class(self.class()?)),
                '{' => parts.push(Part::Same(self.repetition()?)),
                '.' => parts.push(self.single(Part::Class("(?s:.)".to_owned()))),
                '(' | ')' | '|' | '*' | '+' | '?' => parts.push(self.single(Part::Same(next.to_string()))),
                ':' => self.definition(&mut parts)?,
                c if is_name(c) => parts.push(Part::Name(self.name(), false)),
                other => return Err(GrammarError::refused(format!("the grammar has an unexpected `{other}`"))),
            }
        }
        Ok(parts)
    }

    fn single(&mut self, part: Part) -> Part {
        self.chars.next();
        part
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.chars.next_if(|&c| is_name(c)) {
            name.push(c);
        }
        name
    }

    /// `::=`, which makes the name before it a definition.
    fn definition(&mut self, parts: &mut [Part]) -> Result<(), GrammarError> {
        let defines = ":".chars().chain(":=".chars()).all(|expected| self.chars.next() == Some(expected));
        match parts.last_mut() {
            Some(Part::Name(_, is_definition @ false)) if defines => {
                *is_definition = true;
                Ok(())
            }
            _ => Err(GrammarError::refused("a rule of the grammar is not written as `name ::= …`")),
        }
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        self.chars.next();
        let mut text = String::new();
        while let Some(c) = self.chars.next() {
            match c {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                c => text.push(c),
            }
        }
        Err(GrammarError::refused("a text of the grammar has no closing `\"`"))
    }

    /// A class such as `[a-z\n]` or `[^"]`.
    fn class(&mut self) -> Result<String, GrammarError> {
        self.chars.next();
        let mut regex = "[".to_owned();
        if self.chars.next_if_eq(&'^').is_some() {
            regex.push('^');
        }
        while let Some(c) = self.chars.next() {
            match c {
                ']' if regex.trim_start_matches(['[', '^']).is_empty() => {
                    return Err(GrammarError::refused("a class of the grammar is empty"));
                }
                ']' => return Ok(regex + "]"),
                '-' => regex.push('-'),
                '\\' => push_scalar(&mut regex, self.escape()?),
                c => push_scalar(&mut regex, c),
            }
        }
        Err(GrammarError::refused("a class of the grammar has no closing `]`"))
    }

    fn repetition(&mut self) -> Result<String, GrammarError> {
        let mut text = String::new();
        for c in self.chars.by_ref() {
            match c {
                '}' => return Ok(text + "}"),
                '{' | ',' | '0'..='9' => text.push(c),
                c if c.is_whitespace() => {}
                _ => break,
            }
        }
        Err(GrammarError::refused("a repetition of the grammar is not like `{2}`, `{2,}` or `{2,5}`"))
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let hex = |reader: &mut Self, digits: usize| {
            let text: String = reader.chars.by_ref().take(digits).collect();
            u32::from_str_radix(&text, 16).ok().and_then(char::from_u32)
        };
        let escaped = match self.chars.next() {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('x') => hex(self, 2),
            Some('u') => hex(self, 4),
            Some('U') => hex(self, 8),
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/' | '\'')) => Some(c),
            _ => None,
        };
        escaped.ok_or_else(|| GrammarError::refused("the grammar has an unknown escape after `\\`"))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Writes a character of a class by its number, so that none has a meaning of its own.
fn push_scalar(regex: &mut String, c: char) {
    match c {
        c if c.is_ascii_alphanumeric() => regex.push(c),
        // Writing to a string cannot fail.
        c => drop(write!(regex, r"\x{{{:x}}}", u32::from(c))),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_literals_classes_and_repetitions_are_translated() {
        let gbnf = "# a list\nroot ::= \"[\" my-item (\",\" my-item)* \"]\"\nmy-item ::= [0-9a]{1,3} | \"\\n\\x41\"\n";
        assert_eq!(
            to_lark(gbnf).unwrap(),
            "\nstart: \"[\" rule_1 ( \",\" rule_1 )* \"]\"\nrule_1: /[0-9a]/{1,3} | \"\\nA\""
        );
    }

    #[test]
    fn characters_of_a_class_have_no_meaning_of_their_own() {
        assert_eq!(to_lark("root ::= [^\"\\]/&]").unwrap(), "\nstart: /[^\\x{22}\\x{5d}\\x{2f}\\x{26}]/");
    }

    #[test]
    fn malformed_grammars_are_refused_with_the_reason() {
        for (gbnf, reason) in [
            ("item ::= \"a\"", "no rule `root`"),
            ("root ::= item", "`item` is not defined"),
            ("root ::= \"a", "no closing"),
            ("root ::= [a", "no closing"),
            ("root ::= []", "empty"),
            ("root ::= \"\\q\"", "escape"),
            ("root := \"a\"", "::="),
            ("root ::= \"a\"{x}", "repetition"),
            ("root ::= $", "unexpected"),
        ] {
            let error = to_lark(gbnf).unwrap_err().to_string();
            assert!(error.contains(reason), "{gbnf}: {error}");
        }
    }
}
