//! The words in an answer.

use super::form::TranscriptForm;
use super::tag::{LANGUAGE, TAG};

/// Most bytes before the tag.
const MOST_HEADER: usize = 64;

/// Reads the words in an answer as it comes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TranscriptReader {
    /// What came so far, as long as the tag may follow.
    held: Option<String>,
}

impl TranscriptReader {
    /// The reader of an answer. That of a model that was told the language begins with the words.
    pub fn new(form: &TranscriptForm, has_language: bool) -> Self {
        let is_held = *form == TranscriptForm::Tagged && !has_language;
        TranscriptReader { held: is_held.then(String::new) }
    }

    /// The words that more text of the answer adds.
    pub fn push(&mut self, text: &str) -> String {
        let Some(held) = &mut self.held else { return text.to_owned() };
        held.push_str(text);
        if let Some((_, words)) = held.split_once(TAG) {
            let words = words.to_owned();
            self.held = None;
            return words;
        }
        let may_follow = held.starts_with(LANGUAGE) || LANGUAGE.starts_with(held.as_str());
        if may_follow && held.len() <= MOST_HEADER { String::new() } else { self.end() }
    }

    /// The words that are left when the answer ends.
    pub fn end(&mut self) -> String {
        self.held.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&str], has_language: bool) -> (Vec<String>, String) {
        let mut reader = TranscriptReader::new(&TranscriptForm::Tagged, has_language);
        (parts.iter().map(|part| reader.push(part)).collect(), reader.end())
    }

    #[test]
    fn words_follow_the_tag_however_the_text_is_split() {
        let answer = "language English<asr_text>Hello <asr_text> there.";
        for at in 0..answer.len() {
            let (parts, rest) = read(&[&answer[..at], &answer[at..]], false);
            assert_eq!((parts.concat(), rest.as_str()), ("Hello <asr_text> there.".to_owned(), ""), "{at}");
        }
    }

    #[test]
    fn an_answer_without_the_tag_is_all_words() {
        assert_eq!(read(&["Hello ", "there"], false).0, ["Hello ", "there"]);
        assert_eq!(read(&["lang"], false), (vec![String::new()], "lang".to_owned()));
        let long = format!("language {}", "x".repeat(80));
        assert_eq!(read(&[&long], false).0.concat(), long);
        assert_eq!(read(&["language is hard"], true).0, ["language is hard"]);
    }
}
