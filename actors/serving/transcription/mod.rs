//! How a model is asked to write what is said in audio, and how its answer is read.

use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use super::chat_prompt::ChatPrompt;
use super::error::{ApiError, clip};
use super::media_source::MediaField;

/// What stands between the language and the text in the answers of models that only transcribe.
const TAG: &str = "<asr_text>";
/// What their answers begin with.
const LANGUAGE: &str = "language ";
/// Most bytes before the tag.
const MOST_HEADER: usize = 64;

/// The languages of models that only transcribe: their codes and names.
const LANGUAGES: &[(&str, &str)] = &[
    ("ar", "Arabic"),
    ("yue", "Cantonese"),
    ("zh", "Chinese"),
    ("cs", "Czech"),
    ("da", "Danish"),
    ("nl", "Dutch"),
    ("en", "English"),
    ("fil", "Filipino"),
    ("fi", "Finnish"),
    ("fr", "French"),
    ("de", "German"),
    ("el", "Greek"),
    ("hi", "Hindi"),
    ("hu", "Hungarian"),
    ("id", "Indonesian"),
    ("it", "Italian"),
    ("ja", "Japanese"),
    ("ko", "Korean"),
    ("mk", "Macedonian"),
    ("ms", "Malay"),
    ("fa", "Persian"),
    ("pl", "Polish"),
    ("pt", "Portuguese"),
    ("ro", "Romanian"),
    ("ru", "Russian"),
    ("es", "Spanish"),
    ("sv", "Swedish"),
    ("th", "Thai"),
    ("tr", "Turkish"),
    ("vi", "Vietnamese"),
];

/// What a model makes of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TranscriptForm {
    /// What the text of a message asks for.
    Instructed,
    /// `language English<asr_text>`, then the text. The model takes no instructions (Qwen 3 ASR).
    Tagged,
}

impl TranscriptForm {
    /// The form of a model with this vocabulary.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        match tokenizer.encode(TAG, false, true).as_deref() {
            Ok([_]) => TranscriptForm::Tagged,
            _ => TranscriptForm::Instructed,
        }
    }
}

/// Audio whose words are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TranscriptionRequest {
    /// The audio.
    pub audio: Vec<MediaField>,
    /// The language that is spoken.
    pub language: Option<String>,
    /// Text before it, for spelling and style.
    pub before: Option<String>,
}

impl TranscriptionRequest {
    /// The conversation that asks for the words.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] for a language that the model does not know, or too much text.
    pub fn chat(self, form: TranscriptForm) -> Result<ChatPrompt, ApiError> {
        let chat = match form {
            TranscriptForm::Instructed => self.instructed(),
            TranscriptForm::Tagged => self.tagged()?,
        };
        chat.check_size()?;
        Ok(chat)
    }

    fn instructed(self) -> ChatPrompt {
        let mut text = "Transcribe the audio. Answer with the words that are spoken and nothing else.".to_owned();
        if let Some(language) = &self.language {
            text.push_str(&format!(" The language is {language}."));
        }
        if let Some(before) = &self.before {
            text.push_str(&format!(" For spelling and style, this text comes before it: {before}"));
        }
        let content = json!([{ "type": MediaKind::Audio.part_type() }, { "type": "text", "text": text }]);
        self.with_messages(json!([{ "role": "user", "content": content }]))
    }

    /// The text before it is the system prompt. A stated language is the beginning of the answer.
    fn tagged(self) -> Result<ChatPrompt, ApiError> {
        let answer_start = self.language.as_deref().map(name_of).transpose()?;
        let user = json!({ "role": "user", "content": [{ "type": MediaKind::Audio.part_type() }] });
        let system = self.before.as_ref().map(|before| json!({ "role": "system", "content": before }));
        let messages = system.into_iter().chain([user]).collect();
        let answer_start = answer_start.map(|name| format!("{LANGUAGE}{name}{TAG}"));
        Ok(ChatPrompt { answer_start, ..self.with_messages(messages) })
    }

    fn with_messages(self, messages: Value) -> ChatPrompt {
        ChatPrompt { messages, media: self.audio, add_generation_prompt: true, ..ChatPrompt::default() }
    }
}

/// The name of a language, which is given by its code or its name.
fn name_of(language: &str) -> Result<&'static str, ApiError> {
    let is_language =
        |(code, name): &&(&str, &str)| [*code, *name].iter().any(|known| known.eq_ignore_ascii_case(language));
    let known = LANGUAGES.iter().find(is_language).map(|(_, name)| *name);
    known.ok_or_else(|| {
        let codes = LANGUAGES.iter().map(|(code, _)| *code).collect::<Vec<_>>().join(", ");
        let message = format!("`language` is {}, which this model does not know; it knows {codes}", clip(language));
        ApiError::invalid("language", message)
    })
}

/// Reads the words in an answer as it comes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TranscriptReader {
    /// What came so far, as long as the tag may follow.
    held: Option<String>,
}

impl TranscriptReader {
    /// The reader of an answer. That of a model that was told the language begins with the words.
    pub fn new(form: TranscriptForm, has_language: bool) -> Self {
        let is_held = form == TranscriptForm::Tagged && !has_language;
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
        let mut reader = TranscriptReader::new(TranscriptForm::Tagged, has_language);
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

    #[test]
    fn a_stated_language_begins_the_answer_by_its_name() {
        let request = |language: &str| TranscriptionRequest {
            audio: Vec::new(),
            language: Some(language.to_owned()),
            before: Some("Cuelight".to_owned()),
        };
        for language in ["de", "German", "german"] {
            let chat = request(language).chat(TranscriptForm::Tagged).expect("the language is known");
            assert_eq!(chat.answer_start.as_deref(), Some("language German<asr_text>"));
            assert_eq!(
                (&chat.messages[0]["content"], &chat.messages[1]["content"]),
                (&json!("Cuelight"), &json!([{ "type": "audio" }]))
            );
        }
        let error = request("tlh").chat(TranscriptForm::Tagged).expect_err("the language is not known").to_string();
        assert!(error.contains("`language`") && error.contains("tlh") && error.contains("yue"), "{error}");
        let chat = request("tlh").chat(TranscriptForm::Instructed).expect("the text names it");
        assert!(chat.messages[0]["content"][1]["text"].to_string().contains("The language is tlh."));
    }
}
