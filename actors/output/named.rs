//! Calls whose name stands before their arguments.

use std::sync::Arc;

use super::arguments::ArgumentsReader;
use super::delta::ToolSpec;
use super::emit::Emitter;
use super::format::{Arguments, Named};
use super::read::Read;
use super::search::{Found, MarkerSet, Search};
use super::tagged::TaggedReader;

/// Characters of a name, an id or attributes.
const MAX_NAME: usize = 1024;

#[derive(Debug, Clone)]
enum State {
    Name,
    Id,
    Head,
    Json(ArgumentsReader),
    Tagged(Box<TaggedReader>),
}

/// Reads one call, after the marker before it.
#[derive(Debug, Clone)]
pub(super) struct NamedCall {
    format: Named,
    call_end: Vec<String>,
    tools: Arc<[ToolSpec]>,
    state: State,
    search: Search,
    markers: MarkerSet,
    /// Number of markers that are taken with the name. Those behind them belong to the arguments.
    taken: usize,
    name: String,
    id: String,
}

impl NamedCall {
    pub(super) fn new(format: &Named, call_end: &[String], tools: Arc<[ToolSpec]>) -> Self {
        let ends = format.id_begin.iter().chain(&format.id_end).chain(&format.name_end);
        let taken = ends.clone().filter(|marker| !marker.is_empty()).count();
        let next = match &format.arguments {
            Arguments::Json | Arguments::Quoted(_) => vec!["{".to_owned()],
            Arguments::Tagged(tagged) => std::iter::once(tagged.begin.clone()).chain(call_end.to_vec()).collect(),
        };
        NamedCall {
            markers: MarkerSet::new(ends.cloned().chain(next)),
            format: format.clone(),
            call_end: call_end.to_vec(),
            tools,
            state: State::Name,
            search: Search::default(),
            taken,
            name: String::new(),
            id: String::new(),
        }
    }

    /// A call with JSON arguments whose name is known already.
    pub(super) fn after_name(name: &str, emitter: &mut Emitter) -> Self {
        let mut call = NamedCall::new(&Named::default(), &[], Arc::default());
        name.clone_into(&mut call.name);
        call.begin_arguments(emitter);
        call
    }

    /// Reads one character.
    pub(super) fn read(&mut self, character: char, emitter: &mut Emitter) -> Read {
        match &mut self.state {
            State::Json(reader) => read_json(reader, character, emitter),
            State::Tagged(reader) => reader.read(character, emitter),
            _ => {
                let found = self.search.read(&self.markers, character);
                self.handle(found, emitter)
            }
        }
    }

    /// No more text follows. Returns whether all that was read belongs to a call that began.
    pub(super) fn finish(&mut self, emitter: &mut Emitter) -> bool {
        match &mut self.state {
            State::Json(reader) if reader.is_empty() => {
                emitter.begin_announced();
                emitter.end();
            }
            State::Tagged(reader) => reader.finish(emitter),
            _ => {}
        }
        !emitter.forget_announced() && matches!(self.state, State::Json(_) | State::Tagged(_))
    }

    fn handle(&mut self, found: Found, emitter: &mut Emitter) -> Read {
        let rest = match found {
            Found::Nothing => return Read::More,
            Found::Character(character, rest) => {
                let text = if matches!(self.state, State::Id) { &mut self.id } else { &mut self.name };
                let is_head = matches!(self.state, State::Head);
                if text.len() > MAX_NAME || (!is_head && !may_stand_in_name(character, text)) {
                    return Read::Bad;
                }
                if !is_head {
                    text.push(character);
                }
                rest
            }
            Found::Marker(index, rest) => match self.marker(index, emitter) {
                Some(again) => again + &rest,
                None => return Read::Bad,
            },
        };
        for character in rest.chars() {
            match self.read(character, emitter) {
                Read::More => {}
                other => return other,
            }
        }
        Read::More
    }

    /// Returns what must be read again. `None` if the marker must not stand here.
    fn marker(&mut self, index: usize, emitter: &mut Emitter) -> Option<String> {
        if self.name.trim().is_empty() {
            return None;
        }
        let again = if index < self.taken { String::new() } else { self.markers.get(index).to_owned() };
        let is_id = self.format.id_begin.is_some() && index == 0;
        let id_first = self.format.id_end.is_some() && self.id.is_empty();
        match self.state {
            State::Name if is_id => self.state = State::Id,
            State::Name if id_first && index == 0 => self.id = std::mem::take(&mut self.name),
            State::Name | State::Id if self.format.head_end.is_some() => {
                self.markers = MarkerSet::new(self.format.head_end.clone());
                self.taken = 1;
                self.state = State::Head;
            }
            _ => self.begin_arguments(emitter),
        }
        Some(again)
    }

    fn begin_arguments(&mut self, emitter: &mut Emitter) {
        self.name = self.name.trim().to_owned();
        self.id = self.id.trim().to_owned();
        if self.format.name_is_id {
            self.id = std::mem::take(&mut self.name);
            name_of_id(&self.id).clone_into(&mut self.name);
        }
        emitter.announce(&self.name, &self.id);
        self.state = match &self.format.arguments {
            Arguments::Json => State::Json(ArgumentsReader::new(None)),
            Arguments::Quoted(marker) => State::Json(ArgumentsReader::new(Some(marker.clone()))),
            Arguments::Tagged(tagged) => {
                let tool = self.tools.iter().find(|tool| tool.name == self.name);
                let schema = tool.map(|tool| tool.parameters.clone()).unwrap_or_default();
                State::Tagged(Box::new(TaggedReader::new(tagged, &self.call_end, schema)))
            }
        };
    }
}

fn read_json(reader: &mut ArgumentsReader, character: char, emitter: &mut Emitter) -> Read {
    let mut out = String::new();
    let read = reader.read(character, &mut out);
    if read == Read::Bad {
        return read;
    }
    if !out.is_empty() {
        emitter.begin_announced();
        emitter.arguments(&out);
    }
    if read != Read::More {
        emitter.end();
    }
    read
}

/// Names and ids have no space within and no brackets, so that a text that only mentions a marker is no call.
fn may_stand_in_name(character: char, before: &str) -> bool {
    let space_within = !character.is_whitespace() && before.ends_with(char::is_whitespace) && !before.trim().is_empty();
    !space_within && !matches!(character, '<' | '>' | '{' | '}' | '"')
}

/// `f` of `functions.f:0`.
fn name_of_id(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}
