//! How a model is asked to write what is said in audio, and how its answer is read.
//!
//! - [`languages`]: their codes and names
//! - [`marks`]: the tokens around the words of models that hear a window at a time
//! - [`recording`]: the windows of a recording; `windows`: where they end

mod languages;
pub(crate) mod marks;
pub(crate) mod recording;
mod windows;

use std::sync::Arc;

use cuelight_engine::engine::EmbeddingLimits;
use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use self::languages::{OF_QWEN_3_ASR, code_of, name_of};
use self::marks::Marks;
use super::chat_prompt::ChatPrompt;
use super::error::ApiError;
use super::media_source::MediaField;
use crate::pipeline::runtime::ServedModel;

/// What stands between the language and the text in the answers of models that only transcribe.
const TAG: &str = "<asr_text>";
/// What their answers begin with.
const LANGUAGE: &str = "language ";
/// Most bytes before the tag.
const MOST_HEADER: usize = 64;

/// What a model makes of audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranscriptForm {
    /// What the text of a message asks for.
    Instructed,
    /// `language English<asr_text>`, then the text. The model takes no instructions (Qwen 3 ASR).
    Tagged,
    /// Words between tokens, of a window. The model has learnt nothing else (Whisper).
    Marked(Arc<Marks>),
}

impl TranscriptForm {
    /// The form of a model.
    pub fn of(model: &ServedModel) -> Self {
        let EmbeddingLimits { leading_rows, .. } = model.limits.embeddings.unwrap_or_default();
        let marks = (leading_rows > 0).then(|| Marks::of(&model.tokenizer, leading_rows)).flatten();
        match (marks, model.tokenizer.encode(TAG, false, true).as_deref()) {
            (Some(marks), _) => TranscriptForm::Marked(Arc::new(marks)),
            (None, Ok([_])) => TranscriptForm::Tagged,
            (None, _) => TranscriptForm::Instructed,
        }
    }
}

/// The name of a language in lower case, as OpenAI's API has it, or its code if it has no name here.
pub(crate) fn language_name(code: &str) -> String {
    name_of(code).map_or_else(|| code.to_owned(), str::to_lowercase)
}

/// What is written of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Task {
    /// What is said.
    #[default]
    Transcribe,
    /// The same in English.
    Translate,
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
    pub task: Task,
}

impl TranscriptionRequest {
    /// The conversation that asks for the words.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] for a language that the model does not know, or too much text.
    pub fn chat(self, form: &TranscriptForm) -> Result<ChatPrompt, ApiError> {
        let chat = match form {
            TranscriptForm::Instructed => self.instructed(),
            TranscriptForm::Tagged => self.tagged()?,
            TranscriptForm::Marked(_) => self.marked(),
        };
        chat.check_size()?;
        Ok(chat)
    }

    fn instructed(self) -> ChatPrompt {
        let mut text = match self.task {
            Task::Transcribe => "Transcribe the audio. Answer with the words that are spoken and nothing else.",
            Task::Translate => "Translate the audio into English. Answer with the translation and nothing else.",
        }
        .to_owned();
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
        if self.task == Task::Translate {
            let message = "this model writes what is said and does not translate it".to_owned();
            return Err(ApiError::Unsupported { param: "model".to_owned(), message });
        }
        let code = self.language.as_deref().map(|language| code_of(language, OF_QWEN_3_ASR)).transpose()?;
        let answer_start = code.and_then(name_of);
        let user = json!({ "role": "user", "content": [{ "type": MediaKind::Audio.part_type() }] });
        let system = self.before.as_ref().map(|before| json!({ "role": "system", "content": before }));
        let messages = system.into_iter().chain([user]).collect();
        let answer_start = answer_start.map(|name| format!("{LANGUAGE}{name}{TAG}"));
        Ok(ChatPrompt { answer_start, ..self.with_messages(messages) })
    }

    /// The language and the task are the beginning of the answer.
    fn marked(self) -> ChatPrompt {
        let text = self.before.as_ref().map(|before| json!({ "type": "text", "text": before }));
        let content: Value = [json!({ "type": MediaKind::Audio.part_type() })].into_iter().chain(text).collect();
        self.with_messages(json!([{ "role": "user", "content": content }]))
    }

    fn with_messages(self, messages: Value) -> ChatPrompt {
        ChatPrompt { messages, media: self.audio, add_generation_prompt: true, ..ChatPrompt::default() }
    }
}

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

    #[test]
    fn a_stated_language_begins_the_answer_by_its_name() {
        let request = |language: &str| TranscriptionRequest {
            audio: Vec::new(),
            language: Some(language.to_owned()),
            before: Some("Cuelight".to_owned()),
            task: Task::Transcribe,
        };
        for language in ["de", "German", "german"] {
            let chat = request(language).chat(&TranscriptForm::Tagged).expect("the language is known");
            assert_eq!(chat.answer_start.as_deref(), Some("language German<asr_text>"));
            assert_eq!(
                (&chat.messages[0]["content"], &chat.messages[1]["content"]),
                (&json!("Cuelight"), &json!([{ "type": "audio" }]))
            );
        }
        let error = request("tlh").chat(&TranscriptForm::Tagged).expect_err("the language is not known").to_string();
        assert!(error.contains("`language`") && error.contains("tlh") && error.contains("yue"), "{error}");
        let chat = request("tlh").chat(&TranscriptForm::Instructed).expect("the text names it");
        assert!(chat.messages[0]["content"][1]["text"].to_string().contains("The language is tlh."));
    }
}
