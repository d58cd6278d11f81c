//! The conversation so far, in the form of chat templates and of saved files.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::error::CliError;
use crate::pipeline::media::CachedMedia;

/// A system prompt and the messages after it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The instructions before all messages.
    pub system: Option<String>,
    /// User and assistant messages by turns, from the user's first.
    turns: Vec<Turn>,
}

/// One message.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
struct Turn {
    role: String,
    content: String,
    /// The images and audio before its text.
    #[serde(skip)]
    media: Vec<CachedMedia>,
}

impl Turn {
    fn message(&self) -> Value {
        json!({ "role": self.role, "content": content(&self.content, &self.media) })
    }
}

/// A message's content as chat templates expect it: a text, or a list of media and a text.
fn content(text: &str, media: &[CachedMedia]) -> Value {
    if media.is_empty() {
        return json!(text);
    }
    let media = media.iter().map(|item| json!({ "type": item.parts.kind.part_type() }));
    media.chain([json!({ "type": "text", "text": text })]).collect()
}

impl Conversation {
    /// A conversation without messages.
    #[must_use]
    pub fn new(system: Option<String>) -> Self {
        Conversation { system: system.filter(|text| !text.is_empty()), turns: Vec::new() }
    }

    /// The messages of the conversation, and `next` as the user's last one, with media.
    #[must_use]
    pub fn messages_with(&self, next: &str, media: &[CachedMedia]) -> Value {
        self.messages().chain([json!({ "role": "user", "content": content(next, media) })]).collect()
    }

    /// The media of all messages.
    pub fn media(&self) -> impl Iterator<Item = &CachedMedia> {
        self.turns.iter().flat_map(|turn| &turn.media)
    }

    /// Adds a question with its media, and its answer, which may be incomplete.
    pub fn keep(&mut self, question: &str, media: Vec<CachedMedia>, answer: &str) {
        let turn =
            |role: &str, content: &str, media| Turn { role: role.to_owned(), content: content.to_owned(), media };
        self.turns.extend([turn("user", question, media), turn("assistant", answer, Vec::new())]);
    }

    /// Removes all messages and keeps the system prompt.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// The number of questions with their answers.
    #[must_use]
    pub fn exchanges(&self) -> usize {
        self.turns.len() / 2
    }

    /// The same conversation without its oldest `count` questions and their answers.
    #[must_use]
    pub fn without_oldest(&self, count: usize) -> Self {
        Conversation { system: self.system.clone(), turns: self.turns.iter().skip(2 * count).cloned().collect() }
    }

    fn messages(&self) -> impl Iterator<Item = Value> + '_ {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        system.chain(self.turns.iter().map(Turn::message))
    }

    /// Writes the texts of the conversation as `{"messages": [...]}`, which is also a body for the API.
    ///
    /// # Errors
    /// [`CliError::Io`] when the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let texts = Conversation {
            turns: self.turns.iter().map(|turn| Turn { media: Vec::new(), ..turn.clone() }).collect(),
            ..self.clone()
        };
        let text = format!("{:#}\n", json!({ "messages": texts.messages().collect::<Value>() }));
        std::fs::write(path, text).map_err(CliError::io(format!("write {}", path.display())))
    }

    /// Reads a file written by [`Self::save`].
    ///
    /// # Errors
    /// [`CliError`] when the file cannot be read or is not a conversation.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = std::fs::read_to_string(path).map_err(CliError::io(format!("read {}", path.display())))?;
        let wrong = |what: &str| CliError::Failed(format!("{} is not a saved conversation: {what}", path.display()));
        let mut value: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        let turns: Vec<Turn> =
            serde_json::from_value(value["messages"].take()).map_err(|error| wrong(&error.to_string()))?;
        let (system, turns): (Vec<Turn>, Vec<Turn>) = turns.into_iter().partition(|turn| turn.role == "system");
        let roles = turns.iter().map(|turn| turn.role.as_str());
        if !roles.clone().zip(["user", "assistant"].into_iter().cycle()).all(|(role, expected)| role == expected) {
            return Err(wrong("the messages must come from user and assistant by turns"));
        }
        Ok(Conversation { system: system.into_iter().next().map(|turn| turn.content), turns })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_begin_with_the_system_prompt_and_end_with_the_question() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep("Hi", Vec::new(), "Hello!");
        let messages = conversation.messages_with("Why?", &[]);
        let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[3]["content"], "Why?");
    }

    #[test]
    fn the_oldest_exchanges_are_dropped_first() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep("1", Vec::new(), "one");
        conversation.keep("2", Vec::new(), "two");
        let rest = conversation.without_oldest(1);
        assert_eq!((rest.exchanges(), rest.system.as_deref()), (1, Some("Be brief.")));
        assert_eq!(rest.messages_with("3", &[])[1]["content"], "2");
        assert_eq!(conversation.without_oldest(9).exchanges(), 0);
    }

    #[test]
    fn a_saved_conversation_loads_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep("Hi", Vec::new(), "Hello!\n");
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
    }

    #[test]
    fn an_invalid_file_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        for text in ["{", "{}", r#"{"messages": [{"role": "assistant", "content": "x"}]}"#] {
            std::fs::write(&path, text).unwrap();
            let error = Conversation::load(&path).unwrap_err().to_string();
            assert!(error.contains("chat.json is not a saved conversation"), "{error}");
        }
    }
}
