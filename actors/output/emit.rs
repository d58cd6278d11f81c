//! The deltas of an answer in the making.

use super::delta::Delta;
use super::ids::{IdSource, IdStyle};

/// Collects deltas. Neighbours of one kind are joined.
#[derive(Debug)]
pub(super) struct Emitter {
    deltas: Vec<Delta>,
    ids: IdSource,
    style: IdStyle,
    calls: usize,
    open: bool,
    /// A call that begins if its arguments do: name and id.
    announced: Option<(String, String)>,
    arguments_bytes: u64,
    call_bytes: u64,
}

impl Emitter {
    pub(super) fn new(ids: IdSource, style: IdStyle) -> Self {
        Emitter {
            deltas: Vec::new(),
            ids,
            style,
            calls: 0,
            open: false,
            announced: None,
            arguments_bytes: 0,
            call_bytes: 0,
        }
    }

    pub(super) fn drain(&mut self, out: &mut Vec<Delta>) {
        out.append(&mut self.deltas);
    }

    /// Number of calls that began.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// A call began and has not ended.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// A number that grows with every delta of a call.
    pub(super) fn progress(&self) -> u64 {
        self.arguments_bytes + self.calls as u64
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// Begins a call. The id is a new one without the model's.
    pub(super) fn start(&mut self, name: &str, id: Option<&str>) {
        let id = id.filter(|id| !id.is_empty()).map_or_else(|| self.ids.next(self.style), str::to_owned);
        self.deltas.push(Delta::ToolCallStart { index: self.calls, id, name: name.to_owned() });
        self.calls += 1;
        self.open = true;
        self.call_bytes = self.arguments_bytes;
    }

    /// Remembers a call whose arguments are not here yet.
    pub(super) fn announce(&mut self, name: &str, id: &str) {
        self.announced = Some((name.to_owned(), id.to_owned()));
    }

    /// Begins the call that was announced, unless it began already.
    pub(super) fn begin_announced(&mut self) {
        if let Some((name, id)) = self.announced.take() {
            self.start(&name, Some(&id));
        }
    }

    /// Gives up a call that was announced. Returns whether there was one.
    pub(super) fn forget_announced(&mut self) -> bool {
        self.announced.take().is_some()
    }

    /// Adds to the arguments of the call that began last.
    pub(super) fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.arguments_bytes += text.len() as u64;
        let current = self.calls.saturating_sub(1);
        match self.deltas.last_mut() {
            Some(Delta::ToolCallArguments { index, fragment }) if *index == current => fragment.push_str(text),
            _ => self.deltas.push(Delta::ToolCallArguments { index: current, fragment: text.to_owned() }),
        }
    }

    /// Ends a call whose arguments are complete.
    pub(super) fn end(&mut self) {
        if self.arguments_bytes == self.call_bytes {
            self.arguments("{}");
        }
        self.open = false;
    }

    /// Ends a call whose arguments stay incomplete.
    pub(super) fn abandon(&mut self) {
        self.open = false;
    }
}
