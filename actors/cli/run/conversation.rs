//! The conversation so far, in the form of chat templates and of saved files.

use std::path::Path;

use serde_json::{Value, json};

use super::turn::{Role, SavedTurn, Turn, are_complete};
use crate::cli::error::CliError;
use crate::pipeline::media::CachedMedia;

/// A system prompt and the messages after it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The instructions before all messages.
    pub system: Option<String>,
    /// Questions with their answers. Between these may be calls of tools and their results.
    turns: Vec<Turn>,
}

impl Conversation {
    /// A conversation without messages.
    #[must_use]
    pub fn new(system: Option<String>) -> Self {
        Conversation { system: system.filter(|text| !text.is_empty()), turns: Vec::new() }
    }

    /// The messages of the conversation, and those of a question that is not answered yet.
    #[must_use]
    pub fn messages_with(&self, next: &[Turn]) -> Value {
        self.messages(Turn::for_template).chain(next.iter().map(Turn::for_template)).collect()
    }

    /// The media of all messages.
    pub fn media(&self) -> impl Iterator<Item = &CachedMedia> {
        self.turns.iter().flat_map(|turn| &turn.media)
    }

    /// Adds a question and what followed, up to its answer, which may be incomplete.
    pub fn keep(&mut self, exchange: Vec<Turn>) {
        self.turns.extend(exchange);
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
        self.questions().count()
    }

    /// The same conversation without its oldest `count` questions and their answers.
    #[must_use]
    pub fn without_oldest(&self, count: usize) -> Self {
        let first = self.questions().nth(count).unwrap_or(self.turns.len());
        Conversation { system: self.system.clone(), turns: self.turns[first..].to_vec() }
    }

    /// Where questions are.
    fn questions(&self) -> impl Iterator<Item = usize> + '_ {
        self.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::User).map(|(index, _)| index)
    }

    fn messages(&self, form: fn(&Turn) -> Value) -> impl Iterator<Item = Value> + '_ {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        system.chain(self.turns.iter().map(form))
    }

    /// Writes the texts of the conversation as `{"messages": [...]}`, which is also a body for the API.
    ///
    /// # Errors
    /// [`CliError::Io`] when the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let text = format!("{:#}\n", json!({ "messages": self.messages(Turn::saved).collect::<Value>() }));
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
        let saved: Vec<SavedTurn> =
            serde_json::from_value(value["messages"].take()).map_err(|error| wrong(&error.to_string()))?;
        let turns = saved.into_iter().map(Turn::from);
        let (system, turns): (Vec<Turn>, Vec<Turn>) = turns.partition(|turn| turn.role == Role::System);
        if !are_complete(&turns) {
            return Err(wrong("the messages must be questions with complete answers"));
        }
        Ok(Conversation { system: system.into_iter().next().map(|turn| turn.content), turns })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::turn::ToolCall;

    fn exchange(question: &str, answer: &str) -> Vec<Turn> {
        vec![Turn::user(question, Vec::new()), Turn::assistant(answer)]
    }

    /// A question that was answered with the result of a call.
    fn with_call() -> Vec<Turn> {
        let call = ToolCall { id: "1".into(), name: "files__read".into(), arguments: r#"{"path":"a"}"#.into() };
        let calls = vec![call.clone()];
        let calling = Turn { calls, reasoning: "I must look.".into(), ..Turn::assistant("") };
        let [question, answer] = [Turn::user("What is in a?", Vec::new()), Turn::assistant("Text.")];
        vec![question, calling, Turn::result(&call, "some text", Vec::new()), answer]
    }

    #[test]
    fn messages_begin_with_the_system_prompt_and_end_with_the_question() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep(exchange("Hi", "Hello!"));
        let messages = conversation.messages_with(&[Turn::user("Why?", Vec::new())]);
        let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[3]["content"], "Why?");
    }

    #[test]
    fn the_oldest_exchanges_are_dropped_first() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep(exchange("1", "one"));
        conversation.keep(exchange("2", "two"));
        let rest = conversation.without_oldest(1);
        assert_eq!((rest.exchanges(), rest.system.as_deref()), (1, Some("Be brief.")));
        assert_eq!(rest.messages_with(&[Turn::user("3", Vec::new())])[1]["content"], "2");
        assert_eq!(conversation.without_oldest(9).exchanges(), 0);
    }

    #[test]
    fn a_saved_conversation_loads_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.keep(exchange("Hi", "Hello!\n"));
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
    }

    #[test]
    fn calls_and_results_belong_to_their_question() {
        let mut conversation = Conversation::new(None);
        conversation.keep(with_call());
        conversation.keep(exchange("2", "two"));
        assert_eq!((conversation.exchanges(), conversation.without_oldest(1).len()), (2, 2));
    }

    #[test]
    fn templates_get_the_arguments_of_calls_as_objects_and_files_as_texts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let mut conversation = Conversation::new(None);
        conversation.keep(with_call());
        let messages = conversation.messages_with(&[]);
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!({ "path": "a" }));
        assert_eq!((&messages[2]["role"], &messages[2]["tool_call_id"]), (&json!("tool"), &json!("1")));
        conversation.save(&path).unwrap();
        let saved: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(saved["messages"][1]["tool_calls"][0]["function"]["arguments"], r#"{"path":"a"}"#);
        assert_eq!(Conversation::load(&path).unwrap().messages_with(&[]), messages);
    }

    #[test]
    fn an_invalid_file_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let result =
            r#"{"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "", "tool_call_id": "1"}]}"#;
        for text in ["{", "{}", r#"{"messages": [{"role": "assistant", "content": "x"}]}"#, result] {
            std::fs::write(&path, text).unwrap();
            let error = Conversation::load(&path).unwrap_err().to_string();
            assert!(error.contains("chat.json is not a saved conversation"), "{error}");
        }
    }
}
