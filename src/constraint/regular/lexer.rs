//! Divides a Lark grammar into tokens.

use std::iter::Peekable;
use std::str::Chars;

use super::error::LarkError;

/// A token of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// The name of a rule or a terminal.
    Name(String),
    /// A text, and whether it matches in upper and lower case.
    Text(String, bool),
    /// A regular expression and its flags.
    Regex(String, String),
    Number(String),
    /// `%import` and the like, without the sign.
    Directive(String),
    /// One of `: | ( ) [ ] { } ? * + ~ . .. , -> !`.
    Sign(&'static str),
    Newline,
}

/// The signs, longer ones first.
const SIGNS: [&str; 17] = ["->", "..", ":", "|", "(", ")", "[", "]", "{", "}", "?", "*", "+", "~", ".", ",", "!"];

/// The tokens of a grammar with their lines, without comments.
pub(super) fn tokens(grammar: &str) -> Result<Vec<(usize, Token)>, LarkError> {
    let mut reader = Reader { rest: grammar, line: 1 };
    let mut tokens = Vec::new();
    loop {
        reader.skip_blanks();
        let line = reader.line;
        match reader.token()? {
            Some(token) => tokens.push((line, token)),
            None => return Ok(tokens),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    fn malformed(&self, reason: impl Into<String>) -> LarkError {
        LarkError::Malformed { line: self.line, reason: reason.into() }
    }

    /// Skips white space within a line, and comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            if !(self.rest.starts_with("//") || self.rest.starts_with('#')) {
                return;
            }
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn token(&mut self) -> Result<Option<Token>, LarkError> {
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            '\n' => {
                self.take(1);
                self.line += 1;
                Token::Newline
            }
            '"' => self.text()?,
            '/' => self.regex()?,
            '%' => {
                self.take(1);
                Token::Directive(self.word())
            }
            'a'..='z' | 'A'..='Z' | '_' => Token::Name(self.word()),
            '0'..='9' => Token::Number(self.word()),
            _ => Token::Sign(self.sign(first)?),
        };
        Ok(Some(token))
    }

    fn word(&mut self) -> String {
        let is_end = |character: char| !(character.is_ascii_alphanumeric() || character == '_');
        self.take(self.rest.find(is_end).unwrap_or(self.rest.len())).to_owned()
    }

    fn sign(&mut self, first: char) -> Result<&'static str, LarkError> {
        let sign = SIGNS.into_iter().find(|sign| self.rest.starts_with(sign));
        // Dialects of Lark have others.
        let feature = || LarkError::Untranslated { line: self.line, feature: format!("the sign {first:?}") };
        let sign = sign.ok_or_else(feature)?;
        self.take(sign.len());
        Ok(sign)
    }

    /// The content up to the next `end` without a backslash before it, without both delimiters.
    fn delimited(&mut self, end: char, name: &str) -> Result<&'a str, LarkError> {
        let mut is_escaped = false;
        for (at, character) in self.rest.char_indices().skip(1) {
            match character {
                '\n' => break,
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if character == end => return Ok(&self.take(at + 1)[1..at]),
                _ => {}
            }
        }
        Err(self.malformed(format!("the {name} has no end")))
    }

    fn text(&mut self) -> Result<Token, LarkError> {
        let content = self.delimited('"', "text")?;
        let text = unescape(content).ok_or_else(|| self.malformed("an escape in the text is not complete"))?;
        let folds_case = self.rest.starts_with('i');
        self.take(usize::from(folds_case));
        Ok(Token::Text(text, folds_case))
    }

    fn regex(&mut self) -> Result<Token, LarkError> {
        let pattern = self.delimited('/', "regular expression")?.replace("\\/", "/");
        let flags = self.rest.find(|flag| !"imslux".contains(flag)).unwrap_or(self.rest.len());
        // Texts are always Unicode, and the locale plays no part.
        let flags: String = self.take(flags).chars().filter(|flag| !"lu".contains(*flag)).collect();
        Ok(Token::Regex(pattern, flags))
    }
}

/// The text of a Python string. `None`: an escape is malformed.
fn unescape(content: &str) -> Option<String> {
    let mut text = String::with_capacity(content.len());
    let mut characters = content.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match characters.next()? {
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'f' => text.push('\u{c}'),
            'v' => text.push('\u{b}'),
            'x' => text.push(number(&mut characters, 2)?),
            'u' => text.push(number(&mut characters, 4)?),
            'U' => text.push(number(&mut characters, 8)?),
            escaped @ ('\\' | '"' | '\'') => text.push(escaped),
            // As in Python, other escapes mean themselves.
            other => text.extend(['\\', other]),
        }
    }
    Some(text)
}

fn number(characters: &mut Peekable<Chars<'_>>, digits: usize) -> Option<char> {
    let read = |_| characters.next_if(char::is_ascii_hexdigit);
    let digits: String = (0..digits).map(read).collect::<Option<_>>()?;
    u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
}
