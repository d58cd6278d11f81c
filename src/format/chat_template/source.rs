//! Checks and prepares the source of a template before it is parsed.
//!
//! Parsing, compiling and dropping an expression recurse once per level of nesting and per operator, so both are bounded here.
//! The limits are an order of magnitude above what known templates need: 30 operators in a tag, 25 levels, 20 KiB.

use super::error::ChatTemplateError;

/// Most bytes of a template.
const MAX_BYTES: usize = 1 << 20;
/// Most levels of blocks, `elif` branches and brackets.
const MAX_DEPTH: usize = 100;
/// Most operators between two tag delimiters.
const MAX_OPERATORS: usize = 512;

/// Blocks that an `end…` tag ends.
const BLOCKS: &[&str] = &["if", "for", "macro", "call", "filter", "with", "block", "autoescape", "generation"];
/// Operators that are words.
const WORDS: &[&str] = &["not", "and", "or", "in", "is", "if", "else"];

/// Checks a template against the limits of its source.
///
/// # Errors
/// [`ChatTemplateError::Limit`] naming the limit and the line.
pub(super) fn check(source: &str) -> Result<(), ChatTemplateError> {
    if source.len() > MAX_BYTES {
        let message = format!("it has {} bytes, and at most {MAX_BYTES} are accepted", source.len());
        return Err(ChatTemplateError::Limit(message));
    }
    let mut scan = Scan { source, at: 0, blocks: Vec::new(), depth: 0 };
    while scan.next_tag()? {}
    Ok(())
}

/// A pass over the tags of a template.
struct Scan<'a> {
    source: &'a str,
    at: usize,
    /// The open blocks: each with its levels, which are its branches.
    blocks: Vec<usize>,
    /// The levels of all open blocks.
    depth: usize,
}

impl<'a> Scan<'a> {
    /// Reads the next tag; false at the end of the template.
    fn next_tag(&mut self) -> Result<bool, ChatTemplateError> {
        let Some(kind) = self.find_tag() else { return Ok(false) };
        if kind == b'#' {
            self.skip_past("#}");
            return Ok(true);
        }
        let start = self.at;
        self.read_expression(if kind == b'%' { "%}" } else { "}}" })?;
        if kind == b'%' {
            self.enter_block(start)?;
        }
        Ok(true)
    }

    /// Moves behind the next opening delimiter, and returns its second character.
    fn find_tag(&mut self) -> Option<u8> {
        let rest = self.source.as_bytes()[self.at..].windows(2);
        let (offset, open) = rest.enumerate().find(|(_, pair)| matches!(**pair, [b'{', b'{' | b'%' | b'#']))?;
        self.at += offset + 2;
        Some(open[1])
    }

    fn skip_past(&mut self, end: &str) {
        self.at = self.source[self.at..].find(end).map_or(self.source.len(), |found| self.at + found + end.len());
    }

    /// Reads up to the end of the tag, and counts operators and open brackets.
    fn read_expression(&mut self, close: &str) -> Result<(), ChatTemplateError> {
        let (mut brackets, mut operators) = (0_usize, 0_usize);
        while let Some(character) = self.source[self.at..].chars().next() {
            if brackets == 0 && self.source[self.at..].starts_with(close) {
                self.at += close.len();
                return Ok(());
            }
            match character {
                '\'' | '"' => self.skip_string(character),
                '(' | '[' | '{' => (brackets, operators) = (brackets + 1, operators + 1),
                ')' | ']' | '}' => brackets = brackets.saturating_sub(1),
                _ if character.is_alphanumeric() || character == '_' => {
                    operators += usize::from(WORDS.contains(&self.skip_word()));
                    continue;
                }
                _ => operators += usize::from(character.is_ascii_punctuation() && !matches!(character, ',' | ':')),
            }
            self.at = (self.at + character.len_utf8()).min(self.source.len());
            self.bound(operators, MAX_OPERATORS, "operators in one tag")?;
            self.bound(brackets + self.depth, MAX_DEPTH, "levels of nesting")?;
        }
        Ok(())
    }

    /// Moves to the closing quote, or to the end.
    fn skip_string(&mut self, quote: char) {
        let mut escaped = false;
        let inside = self.source[self.at + 1..].char_indices();
        let end = inside.skip_while(|(_, character)| {
            let ends = !escaped && *character == quote;
            escaped = !escaped && *character == '\\';
            !ends
        });
        self.at = end.map(|(offset, _)| self.at + 1 + offset).next().unwrap_or(self.source.len());
    }

    fn skip_word(&mut self) -> &'a str {
        let rest = &self.source[self.at..];
        let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Follows the blocks that the tag from `start` begins or ends.
    fn enter_block(&mut self, start: usize) -> Result<(), ChatTemplateError> {
        let tag = self.source[start..self.at].trim_start_matches(['-', '+']).trim_start();
        let name = tag.split(|character: char| !character.is_alphanumeric() && character != '_').next().unwrap_or("");
        match name {
            "raw" => self.skip_raw(),
            "elif" => self.enter(0),
            "set" if !tag.contains('=') => self.enter(1),
            _ if BLOCKS.contains(&name) => self.enter(1),
            _ if name.starts_with("end") => self.depth -= self.blocks.pop().unwrap_or(0),
            _ => {}
        }
        self.bound(self.depth, MAX_DEPTH, "levels of nesting")
    }

    /// Goes one level deeper, in `new` blocks more.
    fn enter(&mut self, new: usize) {
        self.blocks.extend(std::iter::repeat_n(0, new));
        if let Some(levels) = self.blocks.last_mut() {
            *levels += 1;
            self.depth += 1;
        }
    }

    fn skip_raw(&mut self) {
        self.skip_past("endraw");
        self.skip_past("%}");
    }

    fn bound(&self, count: usize, limit: usize, what: &str) -> Result<(), ChatTemplateError> {
        if count <= limit {
            return Ok(());
        }
        let line = self.source.as_bytes()[..self.at].iter().filter(|byte| **byte == b'\n').count() + 1;
        Err(ChatTemplateError::Limit(format!("it has more than {limit} {what} (line {line} of the template)")))
    }
}

/// Replaces the `{% generation %}` tags that mark a model's answers for training.
///
/// They have no effect on prompts. Each becomes a block that is always rendered, so white space is trimmed as for any block.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let (tag, after) = rest[start..].split_at(2 + length + 2);
        result.push_str(&rest[..start]);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => result.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(source: &str, what: &str) {
        let error = check(source).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }

    #[test]
    fn deep_nesting_and_long_chains_are_refused() {
        refused(&format!("{{{{ {} 1 }}}}", "not ".repeat(6000)), "more than 512 operators in one tag (line 1");
        refused(&format!("\n{{{{ {}1 }}}}", "-".repeat(6000)), "more than 512 operators in one tag (line 2");
        for (before, after) in [("1", "+1"), ("1", "~1"), ("a", ".b"), ("a", "|b"), ("a", "[0]"), ("a", "()")] {
            refused(&format!("{{{{ {before}{} }}}}", after.repeat(600)), "more than 512 operators in one tag");
        }
        for open in ["(", "[", "{"] {
            refused(&format!("{{{{ {} 1 }}}}", open.repeat(200)), "more than 100 levels of nesting");
        }
        refused(&"{% if a %}".repeat(200), "more than 100 levels of nesting");
        refused(&("{% if a %}".to_owned() + &"{%- elif b %}".repeat(200)), "more than 100 levels of nesting");
        refused(&"{% set x %}".repeat(200), "more than 100 levels of nesting");
        refused(&" ".repeat(MAX_BYTES + 1), "1048577 bytes");
    }

    #[test]
    fn text_strings_comments_and_raw_blocks_do_not_count() {
        let brackets = "(".repeat(600);
        let accepted = [
            brackets.clone(),
            format!("{{# {brackets} #}}"),
            format!("{{{{ '{brackets}\\'{brackets}' }}}}"),
            format!("{{% raw %}}{{{{ {brackets} {{% endraw %}}"),
            "{% if a %}{{ x + 1 }}{% elif b %}{% else %}{% endif %}".repeat(1000),
            "{% set x = [1, 2] %}{% set y %}{{ {'a': {'b': {}}} }}{% endset %}".repeat(1000),
        ];
        for source in accepted {
            assert_eq!(check(&source), Ok(()), "{source:.60}");
        }
    }

    #[test]
    fn an_unfinished_tag_is_left_to_the_parser() {
        for source in ["{", "{{", "{{ '", "{% if", "{#", "{{ 'a\\", "{{ ä", "{% raw %}", "{% elif %}{% endif %}"] {
            assert_eq!(check(source), Ok(()), "{source}");
        }
    }
}
