//! Reads the rules and terminals of a Lark grammar.

use std::collections::BTreeMap;

use super::common;
use super::error::LarkError;
use super::lexer::{Token, tokens};

/// Deepest nesting of parentheses.
const DEEPEST: usize = 64;

/// What a rule or a terminal consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Sequence(Vec<Expression>),
    Any(Vec<Expression>),
    /// A part and how often it occurs, as a regular expression writes it.
    Repeat(Box<Expression>, String),
    Name(String),
    Text {
        text: String,
        folds_case: bool,
    },
    Regex {
        pattern: String,
        flags: String,
    },
    /// The characters from one to another.
    Range(String, String),
}

/// The rules and terminals of a grammar.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    pub named: BTreeMap<String, Expression>,
    /// What may stand between terminals.
    pub ignored: Vec<Expression>,
}

/// Reads a grammar.
///
/// # Errors
/// [`LarkError::Malformed`] and [`LarkError::Untranslated`] with the line.
pub(super) fn parse(grammar: &str) -> Result<Definitions, LarkError> {
    let mut parser = Parser { tokens: tokens(grammar)?, at: 0, depth: 0, definitions: Definitions::default() };
    while parser.skip_newlines() {
        parser.statement()?;
    }
    Ok(parser.definitions)
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
    definitions: Definitions,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).map(|(_, token)| token.clone())
    }

    /// Takes a sign if it is next.
    fn takes(&mut self, sign: &'static str) -> bool {
        let is_next = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is_next);
        is_next
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(line, _)| *line)
    }

    fn malformed<T>(&self, reason: impl Into<String>) -> Result<T, LarkError> {
        Err(LarkError::Malformed { line: self.line(), reason: reason.into() })
    }

    fn untranslated<T>(&self, feature: impl Into<String>) -> Result<T, LarkError> {
        Err(LarkError::Untranslated { line: self.line(), feature: feature.into() })
    }

    /// Returns whether something follows.
    fn skip_newlines(&mut self) -> bool {
        while self.peek() == Some(&Token::Newline) {
            self.at += 1;
        }
        self.peek().is_some()
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), LarkError> {
        if self.takes(sign) { Ok(()) } else { self.malformed(format!("`{sign}` is missing")) }
    }

    fn statement(&mut self) -> Result<(), LarkError> {
        // What a rule becomes in a tree of Lark does not matter here.
        while self.takes("?") || self.takes("!") {}
        match self.next() {
            Some(Token::Directive(directive)) => self.directive(&directive),
            Some(Token::Name(name)) => self.definition(name),
            _ => {
                self.at -= 1;
                self.malformed("a rule, a terminal or a directive must begin here")
            }
        }
    }

    fn directive(&mut self, directive: &str) -> Result<(), LarkError> {
        match directive {
            "ignore" => {
                let ignored = self.alternatives()?;
                self.definitions.ignored.push(ignored);
                Ok(())
            }
            "import" => self.import(),
            other => self.untranslated(format!("%{other}")),
        }
    }

    /// `common.WS`, `common.WS -> SPACE` or `common (WS, INT)`.
    fn import(&mut self) -> Result<(), LarkError> {
        if self.next() != Some(Token::Name("common".to_owned())) {
            return self.untranslated("an import from another library than `common`");
        }
        if self.takes(".") {
            let name = self.name()?;
            let alias = if self.takes("->") { self.name()? } else { name.clone() };
            return self.import_as(&name, alias);
        }
        self.expect("(")?;
        loop {
            let name = self.name()?;
            self.import_as(&name, name.clone())?;
            if !self.takes(",") {
                return self.expect(")");
            }
        }
    }

    fn name(&mut self) -> Result<String, LarkError> {
        match self.next() {
            Some(Token::Name(name)) => Ok(name),
            _ => self.malformed("a name is missing"),
        }
    }

    fn import_as(&mut self, name: &str, alias: String) -> Result<(), LarkError> {
        match common::regex_of(name) {
            Some(pattern) => {
                let terminal = Expression::Regex { pattern: pattern.to_owned(), flags: String::new() };
                self.definitions.named.insert(alias, terminal);
                Ok(())
            }
            None => self.malformed(format!("the library `common` has no `{name}`")),
        }
    }

    fn definition(&mut self, name: String) -> Result<(), LarkError> {
        if self.takes("{") {
            return self.untranslated("a template");
        }
        if self.takes(".") {
            // Its priority: texts are divided in every possible way.
            self.next();
        }
        self.expect(":")?;
        let body = self.alternatives()?;
        if self.definitions.named.insert(name.clone(), body).is_some() {
            return self.malformed(format!("`{name}` is defined twice"));
        }
        Ok(())
    }

    /// Alternatives up to the end of the statement or a closing bracket.
    fn alternatives(&mut self) -> Result<Expression, LarkError> {
        let mut alternatives = vec![self.sequence()?];
        while self.takes("|") {
            alternatives.push(self.sequence()?);
        }
        Ok(match alternatives.pop() {
            Some(only) if alternatives.is_empty() => only,
            last => Expression::Any(alternatives.into_iter().chain(last).collect()),
        })
    }

    fn sequence(&mut self) -> Result<Expression, LarkError> {
        let mut parts = Vec::new();
        while self.continues() {
            if self.takes("->") {
                self.name()?;
                continue;
            }
            parts.push(self.repeated()?);
        }
        Ok(Expression::Sequence(parts))
    }

    /// Whether the sequence goes on. A line break ends a statement unless an alternative follows, or it is in brackets.
    fn continues(&mut self) -> bool {
        let before = self.at;
        let is_broken = self.peek() == Some(&Token::Newline);
        if !self.skip_newlines() {
            return false;
        }
        let ends = matches!(self.peek(), Some(Token::Sign("|" | ")" | "]")));
        if is_broken && self.depth == 0 && !ends {
            self.at = before;
            return false;
        }
        !ends
    }

    fn repeated(&mut self) -> Result<Expression, LarkError> {
        let part = self.atom()?;
        for (sign, times) in [("?", "?"), ("*", "*"), ("+", "+")] {
            if self.takes(sign) {
                return Ok(Expression::Repeat(Box::new(part), times.to_owned()));
            }
        }
        if !self.takes("~") {
            return Ok(part);
        }
        let least = self.count()?;
        let times = if self.takes("..") { format!("{{{least},{}}}", self.count()?) } else { format!("{{{least}}}") };
        Ok(Expression::Repeat(Box::new(part), times))
    }

    fn count(&mut self) -> Result<u32, LarkError> {
        match self.next() {
            Some(Token::Number(digits)) if digits.len() <= 4 => Ok(digits.parse().unwrap_or_default()),
            _ => self.malformed("a number of repetitions up to 9999 is missing"),
        }
    }

    fn atom(&mut self) -> Result<Expression, LarkError> {
        match self.next() {
            Some(Token::Name(_)) if self.peek() == Some(&Token::Sign("{")) => self.untranslated("a template"),
            Some(Token::Name(name)) => Ok(Expression::Name(name)),
            Some(Token::Text(first, _)) if self.takes("..") => match self.next() {
                Some(Token::Text(last, _)) if [&first, &last].map(|end| end.chars().count()) == [1, 1] => {
                    Ok(Expression::Range(first, last))
                }
                _ => self.malformed("a range has one character on both sides"),
            },
            Some(Token::Text(text, folds_case)) => Ok(Expression::Text { text, folds_case }),
            Some(Token::Regex(pattern, flags)) => Ok(Expression::Regex { pattern, flags }),
            Some(Token::Sign("(")) => self.group(")"),
            Some(Token::Sign("[")) => Ok(Expression::Repeat(Box::new(self.group("]")?), "?".to_owned())),
            _ => {
                self.at -= 1;
                self.malformed("a name, a text, a regular expression or a group must stand here")
            }
        }
    }

    fn group(&mut self, end: &'static str) -> Result<Expression, LarkError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.malformed(format!("more than {DEEPEST} groups are nested"));
        }
        let inner = self.alternatives()?;
        self.depth -= 1;
        self.expect(end)?;
        Ok(inner)
    }
}
