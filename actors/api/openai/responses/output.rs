//! The output of a response: items that grow with the deltas of its answer.

use serde_json::Value;

use super::item::{Content, Item, Status};
use crate::api::openai::tool_name::ClientTools;
use crate::output::Delta;

/// The items so far. The last one may be open.
#[derive(Debug)]
pub(super) struct Output {
    items: Vec<Item>,
    client_tools: ClientTools,
    /// The text of the reasoning is also put into `encrypted_content`.
    keeps_reasoning: bool,
    /// White space that may begin a message. It is no message of its own between calls or after reasoning.
    space: String,
    /// The log-probabilities of tokens whose text is not part of an item yet.
    logprobs: Vec<Value>,
}

/// What became of the item at `index`.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub index: usize,
    pub kind: ChangeKind,
}

/// See [`Change`].
#[derive(Debug, PartialEq)]
pub(super) enum ChangeKind {
    Begun,
    /// Its text is longer.
    Grown {
        delta: String,
        logprobs: Vec<Value>,
    },
    Ended,
}

impl Output {
    /// An empty output.
    pub fn new(client_tools: ClientTools, keeps_reasoning: bool) -> Self {
        Output { items: Vec::new(), client_tools, keeps_reasoning, space: String::new(), logprobs: Vec::new() }
    }

    /// All items.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Adds the log-probabilities of a token. They belong to the text that comes next.
    pub fn push_logprobs(&mut self, logprobs: Vec<Value>) {
        self.logprobs.extend(logprobs);
    }

    /// Adds a piece of the answer.
    pub fn push(&mut self, delta: Delta, changes: &mut Vec<Change>) {
        match delta {
            Delta::Text(text) => self.push_text(text, changes),
            Delta::Reasoning(text) => self.push_reasoning(text, changes),
            Delta::ToolCallStart { id, name, .. } => {
                let (arguments, is_custom) = (String::new(), self.client_tools.is_custom(&name));
                let name = self.client_tools.name(name);
                self.begin(
                    match is_custom {
                        true => Content::CustomCall { call_id: id, name, arguments },
                        false => Content::FunctionCall { call_id: id, name, arguments },
                    },
                    changes,
                );
            }
            Delta::ToolCallArguments { fragment, .. } => self.grow(fragment, changes),
        }
    }

    /// Ends the last item. An output without items gets an empty message.
    pub fn finish(&mut self, status: Status, changes: &mut Vec<Change>) {
        if self.items.is_empty() {
            let text = std::mem::take(&mut self.space);
            self.begin(Content::Message { text: String::new(), logprobs: Vec::new() }, changes);
            self.grow(text, changes);
        }
        self.end(status, changes);
    }

    fn push_text(&mut self, text: String, changes: &mut Vec<Change>) {
        if !matches!(self.open(), Some(Content::Message { .. })) {
            if text.trim().is_empty() {
                self.space.push_str(&text);
                return;
            }
            let text = std::mem::take(&mut self.space) + &text;
            let logprobs = std::mem::take(&mut self.logprobs);
            self.begin(Content::Message { text: String::new(), logprobs: Vec::new() }, changes);
            self.logprobs = logprobs;
            return self.grow(text, changes);
        }
        self.grow(text, changes);
    }

    fn push_reasoning(&mut self, text: String, changes: &mut Vec<Change>) {
        self.space.clear();
        if !matches!(self.open(), Some(Content::Reasoning { .. })) {
            self.begin(Content::Reasoning { text: String::new(), is_kept: self.keeps_reasoning }, changes);
        }
        self.grow(text, changes);
    }

    /// The content of the open item.
    fn open(&self) -> Option<&Content> {
        let last = self.items.last()?;
        (last.status == Status::InProgress).then_some(&last.content)
    }

    fn begin(&mut self, content: Content, changes: &mut Vec<Change>) {
        self.end(Status::Completed, changes);
        self.space.clear();
        self.logprobs.clear();
        changes.push(Change { index: self.items.len(), kind: ChangeKind::Begun });
        self.items.push(Item::new(content));
    }

    fn grow(&mut self, delta: String, changes: &mut Vec<Change>) {
        let Some(last) = self.items.last_mut().filter(|_| !delta.is_empty()) else { return };
        let logprobs = std::mem::take(&mut self.logprobs);
        last.text_mut().push_str(&delta);
        let logprobs = match &mut last.content {
            Content::Message { logprobs: all, .. } => {
                all.extend_from_slice(&logprobs);
                logprobs
            }
            _ => Vec::new(),
        };
        let index = self.items.len() - 1;
        changes.push(Change { index, kind: ChangeKind::Grown { delta, logprobs } });
    }

    fn end(&mut self, status: Status, changes: &mut Vec<Change>) {
        let Some(index) = self.items.len().checked_sub(1) else { return };
        if self.items[index].status == Status::InProgress {
            self.items[index].status = status;
            changes.push(Change { index, kind: ChangeKind::Ended });
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use serde_json::json;

    use super::*;
    use crate::api::openai::tool_name::ToolName;

    /// The types of the items and their texts, after these deltas.
    fn items(deltas: Vec<Delta>) -> (Vec<(String, String)>, Vec<Change>) {
        let mut output =
            Output::new(ClientTools { custom: HashSet::from(["patch".to_owned()]), ..ClientTools::default() }, false);
        let mut changes = Vec::new();
        deltas.into_iter().for_each(|delta| output.push(delta, &mut changes));
        output.finish(Status::Completed, &mut changes);
        let describe =
            |item: &mut Item| (item.json()["type"].as_str().unwrap().to_owned(), std::mem::take(item.text_mut()));
        (output.items.iter_mut().map(describe).collect(), changes)
    }

    fn kinds(deltas: Vec<Delta>) -> Vec<String> {
        items(deltas).0.into_iter().map(|(kind, _)| kind).collect()
    }

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    fn call(index: usize, name: &str) -> [Delta; 2] {
        let start = Delta::ToolCallStart { index, id: format!("call_{index}"), name: name.into() };
        [start, Delta::ToolCallArguments { index, fragment: "{}".into() }]
    }

    #[test]
    fn each_kind_of_delta_is_an_item_and_equal_kinds_grow() {
        let mut deltas =
            vec![Delta::Reasoning("a".into()), Delta::Reasoning("b".into()), text("\n"), text("c"), text("d")];
        deltas.extend(call(0, "f"));
        deltas.extend(call(1, "patch"));
        let (items, changes) = items(deltas);
        let of = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
        assert_eq!(
            items,
            [of("reasoning", "ab"), of("message", "\ncd"), of("function_call", "{}"), of("custom_tool_call", "{}")]
        );
        let count = |kind: &ChangeKind| changes.iter().filter(|change| change.kind == *kind).count();
        assert_eq!((count(&ChangeKind::Begun), count(&ChangeKind::Ended)), (4, 4));
        assert!(changes.is_sorted_by_key(|change| change.index));
    }

    #[test]
    fn a_call_of_a_tool_in_a_namespace_has_both_names() {
        let name = ToolName { namespace: Some("mcp__files".to_owned()), name: "read".to_owned() };
        let namespaced = HashMap::from([(name.for_model(), name)]);
        let mut output = Output::new(ClientTools { namespaced, ..ClientTools::default() }, false);
        call(0, "mcp__files__read")
            .into_iter()
            .chain(call(1, "f"))
            .for_each(|delta| output.push(delta, &mut Vec::new()));
        let [of_namespace, plain] = output.items() else { panic!("{output:?}") };
        for (item, namespace, name) in [(of_namespace, json!("mcp__files"), "read"), (plain, json!(null), "f")] {
            for json in [item.json(), item.json_begun()] {
                assert_eq!((&json["namespace"], json["name"].as_str()), (&namespace, Some(name)));
            }
        }
    }

    #[test]
    fn space_alone_is_no_message_unless_there_is_nothing_else() {
        let mut deltas = vec![Delta::Reasoning("a".into()), text("\n\n")];
        deltas.extend(call(0, "f"));
        deltas.push(text("\n"));
        assert_eq!(kinds(deltas), ["reasoning", "function_call"]);
        assert_eq!(items(vec![text("\n")]).0, [("message".to_owned(), "\n".to_owned())]);
        assert_eq!(items(Vec::new()).0, [("message".to_owned(), String::new())]);
    }

    #[test]
    fn log_probabilities_wait_for_the_text_of_their_token() {
        let mut output = Output::new(ClientTools::default(), false);
        let mut changes = Vec::new();
        output.push_logprobs(vec![json!(1)]);
        output.push(Delta::Reasoning("r".into()), &mut changes);
        output.push_logprobs(vec![json!(2)]);
        output.push_logprobs(vec![json!(3)]);
        output.push(text("ab"), &mut changes);
        let Some(Change { kind: ChangeKind::Grown { logprobs, .. }, .. }) = changes.last() else {
            panic!("{changes:?}")
        };
        assert_eq!(*logprobs, [json!(2), json!(3)]);
    }
}
