//! What a client asks for, and the conversation that asks a model.

use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use super::form::TranscriptForm;
use super::languages::{OF_QWEN_3_ASR, code_of, name_of};
use super::tag::{LANGUAGE, TAG};
use super::task::Task;
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::media_source::MediaField;

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

#[cfg(test)]
mod tests {
    use super::*;

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
