//! The events of a response. Each has a number, and its type is also the name of the server-sent event.

use serde_json::{Value, json};

use super::item::{Content, Item, Status};
use super::keeper::Keeper;
use super::output::{Change, ChangeKind, Output};
use super::response::{ResponseParts, Stage, is_cut_off};
use crate::api::openai::custom_tool::{self, InputReader};
use crate::api::openai::sse::Chunks;
use crate::output::Delta;
use crate::serving::answers::{AnswerEvent, Finish};
use crate::serving::error::ApiError;

/// A response that is being made, and its events.
pub(super) struct ResponseEvents {
    parts: ResponseParts,
    output: Output,
    stage: Stage,
    numbering: Numbering,
    /// Reads the input of the custom call that is being made.
    input: InputReader,
    /// Keeps the response when it is complete.
    keeper: Option<Keeper>,
}

/// Numbers events from zero.
#[derive(Debug, Default)]
struct Numbering(u64);

impl Numbering {
    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.0);
        self.0 += 1;
        fields
    }
}

impl ResponseEvents {
    /// For a response whose `output` has no items so far.
    pub fn new(parts: ResponseParts, output: Output, keeper: Option<Keeper>) -> Self {
        ResponseEvents {
            parts,
            output,
            stage: Stage::InProgress,
            numbering: Numbering::default(),
            input: InputReader::default(),
            keeper,
        }
    }

    /// The complete response, which is kept now if the client wants it.
    pub fn complete(&mut self) -> Value {
        let mut response = self.parts.json(&self.stage, self.output.items());
        if let Some(keeper) = self.keeper.take()
            && !keeper.keep(&response)
        {
            response["store"] = json!(false);
        }
        response
    }

    /// Adds an event of the answer. Returns what it changes.
    pub fn add(&mut self, event: AnswerEvent) -> Vec<Change> {
        let mut changes = Vec::new();
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => {}
            AnswerEvent::Token { logprobs, deltas, .. } => {
                if let Some(position) = logprobs {
                    self.output.push_logprobs(self.parts.logprobs(position));
                }
                self.add_deltas(deltas, &mut changes);
            }
            AnswerEvent::Block { deltas, .. } => self.add_deltas(deltas, &mut changes),
            AnswerEvent::Finished { finish, deltas } => {
                self.add_deltas(deltas, &mut changes);
                self.finish(finish, &mut changes);
            }
        }
        changes
    }

    fn add_deltas(&mut self, deltas: Vec<Delta>, changes: &mut Vec<Change>) {
        deltas.into_iter().for_each(|delta| self.output.push(delta, changes));
    }

    fn finish(&mut self, finish: Finish, changes: &mut Vec<Change>) {
        let status = if is_cut_off(&finish) { Status::Incomplete } else { Status::Completed };
        self.output.finish(status, changes);
        self.stage = Stage::Finished(finish);
    }

    /// An event with the response before its output.
    fn begun(&mut self, kind: &str) -> Value {
        let response = self.parts.json(&self.stage, self.output.items());
        self.numbering.event(kind, json!({ "response": response }))
    }

    fn last(&mut self) -> Value {
        let response = self.complete();
        self.numbering.event(&format!("response.{}", self.stage.status()), json!({ "response": response }))
    }

    fn encode(&mut self, change: Change, events: &mut Vec<Value>) {
        let Some(item) = self.output.items().get(change.index) else { return };
        let (numbering, input) = (&mut self.numbering, &mut self.input);
        let mut encoder = Encoder { item, index: change.index, numbering, input, events };
        match change.kind {
            ChangeKind::Begun => encoder.begun(),
            ChangeKind::Grown { delta, logprobs } => encoder.grown(&delta, logprobs),
            ChangeKind::Ended => encoder.ended(),
        }
    }
}

impl Chunks for ResponseEvents {
    const BEGINS_AT_ONCE: bool = true;
    const ENDS_WITH_DONE: bool = false;

    fn begin(&mut self) -> Vec<Value> {
        vec![self.begun("response.created"), self.begun("response.in_progress")]
    }

    fn on(&mut self, _choice: usize, event: AnswerEvent) -> Vec<Value> {
        let is_last = matches!(event, AnswerEvent::Finished { .. });
        let mut events = Vec::new();
        for change in self.add(event) {
            self.encode(change, &mut events);
        }
        if is_last {
            events.push(self.last());
        }
        events
    }

    fn end(&mut self) -> Vec<Value> {
        Vec::new()
    }

    // Clients such as Codex give up on a stream without events, for which comments do not count.
    fn ping(&mut self) -> Option<Value> {
        Some(self.begun("response.in_progress"))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        self.stage = Stage::Failed(error.clone());
        vec![self.last()]
    }

    fn name(chunk: &Value) -> Option<&str> {
        chunk["type"].as_str()
    }
}

/// Encodes the changes of one item.
struct Encoder<'a> {
    item: &'a Item,
    index: usize,
    numbering: &'a mut Numbering,
    input: &'a mut InputReader,
    events: &'a mut Vec<Value>,
}

impl Encoder<'_> {
    fn begun(&mut self) {
        self.push("response.output_item.added", json!({ "item": self.item.json_begun() }));
        if let Some(part) = self.item.part_begun() {
            self.push_named("response.content_part.added", json!({ "content_index": 0, "part": part }));
        }
    }

    fn grown(&mut self, delta: &str, logprobs: Vec<Value>) {
        match self.item.content {
            Content::Message { .. } => self.push_named(
                "response.output_text.delta",
                json!({ "content_index": 0, "delta": delta, "logprobs": logprobs }),
            ),
            Content::Reasoning { .. } => {
                self.push_named("response.reasoning_text.delta", json!({ "content_index": 0, "delta": delta }));
            }
            Content::FunctionCall { .. } => {
                self.push_named("response.function_call_arguments.delta", json!({ "delta": delta }));
            }
            Content::CustomCall { .. } => {
                let input = self.input.push(delta);
                self.input_grown(&input);
            }
        }
    }

    fn ended(&mut self) {
        match &self.item.content {
            Content::Message { text, logprobs } => self.push_named(
                "response.output_text.done",
                json!({ "content_index": 0, "text": text, "logprobs": logprobs }),
            ),
            Content::Reasoning { text, .. } => {
                self.push_named("response.reasoning_text.done", json!({ "content_index": 0, "text": text }));
            }
            Content::FunctionCall { name, arguments, .. } => {
                let done = json!({ "name": name.name, "arguments": arguments });
                self.push_named("response.function_call_arguments.done", done);
            }
            Content::CustomCall { arguments, .. } => {
                let rest = std::mem::take(self.input).finish();
                self.input_grown(&rest);
                let input = custom_tool::input(arguments);
                self.push_named("response.custom_tool_call_input.done", json!({ "input": input }));
            }
        }
        if let Some(part) = self.item.part() {
            self.push_named("response.content_part.done", json!({ "content_index": 0, "part": part }));
        }
        self.push("response.output_item.done", json!({ "item": self.item.json() }));
    }

    fn input_grown(&mut self, delta: &str) {
        if !delta.is_empty() {
            self.push_named("response.custom_tool_call_input.delta", json!({ "delta": delta }));
        }
    }

    /// An event that names the item by its id.
    fn push_named(&mut self, kind: &str, mut fields: Value) {
        fields["item_id"] = json!(self.item.id);
        self.push(kind, fields);
    }

    fn push(&mut self, kind: &str, mut fields: Value) {
        fields["output_index"] = json!(self.index);
        self.events.push(self.numbering.event(kind, fields));
    }
}
