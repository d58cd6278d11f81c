//! What was said so far, as chat templates and files take it.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::CliError;

/// A system prompt and the turns after it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// What the model is told before everything else.
    pub system: Option<String>,
    turns: Vec<Turn>,
}

/// One message.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Turn {
    role: String,
    content: String,
}

impl Conversation {
    /// An empty one.
    #[must_use]
    pub fn new(system: Option<String>) -> Self {
        Conversation { system: system.filter(|text| !text.is_empty()), turns: Vec::new() }
    }

    /// The messages if the person said `next` now.
    #[must_use]
    pub fn messages_with(&self, next: &str) -> Value {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let turns = self.turns.iter().map(|turn| json!({ "role": turn.role, "content": turn.content }));
        system.chain(turns).chain([json!({ "role": "user", "content": next })]).collect()
    }

    /// Keeps a question and its answer, or as much of the answer as there is.
    pub fn keep(&mut self, question: &str, answer: &str) {
        let turn = |role: &str, content: &str| Turn { role: role.to_owned(), content: content.to_owned() };
        self.turns.extend([turn("user", question), turn("assistant", answer)]);
    }

    /// Forgets all but the system prompt.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Questions and answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Writes it as `{"messages": [...]}`, which the API takes too.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let messages: Value = system.chain(self.turns.iter().map(|turn| json!(turn))).collect();
        let text = format!("{:#}\n", json!({ "messages": messages }));
        std::fs::write(path, text).map_err(CliError::io(format!("write {}", path.display())))
    }

    /// Reads what [`Self::save`] wrote.
    ///
    /// # Errors
    /// [`CliError`] when the file cannot be read or is no conversation.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = std::fs::read_to_string(path).map_err(CliError::io(format!("read {}", path.display())))?;
        let wrong = |what: &str| CliError::Failed(format!("{} is not a saved conversation: {what}", path.display()));
        let mut value: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        let turns: Vec<Turn> =
            serde_json::from_value(value["messages"].take()).map_err(|error| wrong(&error.to_string()))?;
        let (system, turns): (Vec<Turn>, Vec<Turn>) = turns.into_iter().partition(|turn| turn.role == "system");
        let roles = turns.iter().map(|turn| turn.role.as_str());
        if !roles.clone().zip(["user", "assistant"].into_iter().cycle()).all(|(role, expected)| role == expected) {
            return Err(wrong("user and assistant must take turns"));
        }
        Ok(Conversation { system: system.into_iter().next().map(|turn| turn.content), turns })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_begin_with_the_system_prompt_and_end_with_the_question() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep("Hi", "Hello!");
        let messages = conversation.messages_with("Why?");
        let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[3]["content"], "Why?");
    }

    #[test]
    fn what_was_saved_loads_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep("Hi", "Hello!\n");
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
    }

    #[test]
    fn a_file_that_is_no_conversation_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        for text in ["{", "{}", r#"{"messages": [{"role": "assistant", "content": "x"}]}"#] {
            std::fs::write(&path, text).unwrap();
            let error = Conversation::load(&path).unwrap_err().to_string();
            assert!(error.contains("chat.json is not a saved conversation"), "{error}");
        }
    }
}
