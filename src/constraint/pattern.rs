//! Patterns of JSON schemas, which are found anywhere in a text, as regular expressions that match a whole text.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// Any text.
const ANY: &str = "(?s:.*)";

/// Whether the library knows all that a pattern consists of.
pub(super) fn is_supported(pattern: &str) -> bool {
    RegexBuilder::new().mk(&search(pattern)).is_ok()
}

/// The regular expression, as it may stand between `/` in a Lark grammar, of the texts in which a pattern is found. `None` for
/// one that the library does not know, and for one whose alternatives are anchored in different ways.
#[must_use]
pub fn regex_of_pattern(pattern: &str) -> Option<String> {
    let mut builder = RegexBuilder::new();
    let found = builder.mk(&search(pattern)).ok()?;
    // The builder gives the same number to the same expression, so that the pattern need not be parsed here.
    let mut is_same = |anchored: String| builder.mk(&search(&anchored)).is_ok_and(|expression| expression == found);
    let before = if is_same(format!("^(?:{pattern})")) { "" } else { ANY };
    let after = if is_same(format!("(?:{pattern})$")) { "" } else { ANY };
    let whole = format!("{before}(?:{}){after}", regex_to_lark(pattern, "dw"));
    // An anchor in the middle is an error.
    builder.mk(&RegexAst::Regex(whole.clone())).is_ok().then_some(whole)
}

fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn a_pattern_is_found_where_its_expression_matches_the_whole_text() {
        let texts = ["", "a", "ab", "xab", "abx", "xabx", "b", "xb", "12", "a\nb", "/"];
        for pattern in ["a", "^a", "a$", "^a$", "^(a|b)", "(a|b)$", "a|b", "^[a-z]{2}$", r"^\d+$", "", "/", "^", "$"] {
            let Some(whole) = regex_of_pattern(pattern) else { panic!("{pattern}") };
            let found = Regex::new(pattern).expect("a pattern");
            let whole = Regex::new(&format!("^(?:{whole})$")).expect("an expression");
            assert!(texts.iter().all(|text| whole.is_match(text) == found.is_match(text)), "{pattern}: {whole}");
        }
    }

    #[test]
    fn what_cannot_be_one_expression_is_none() {
        assert!(["^a|b", "(?=x)y", "(", r"\bword"].iter().all(|pattern| regex_of_pattern(pattern).is_none()));
        assert!(is_supported("^a|b") && !is_supported("(?=x)y"));
    }
}
