//! Calls that are JSON objects.

use std::sync::Arc;

use super::argument_checks::ArgumentChecks;
use super::arguments::ArgumentsReader;
use super::delta::ToolSpec;
use super::emit::Emitter;
use super::format::JsonKeys;
use super::literal::LiteralReader;
use super::read::Read;

/// Characters of a key, a name or an id.
const MAX_NAME: usize = 1024;

#[derive(Debug, Clone)]
enum State {
    /// An object or an array must follow.
    Begin,
    /// An object or the array's end must follow.
    Element,
    /// A key or the object's end must follow.
    Key,
    KeyText(LiteralReader),
    Colon,
    Name(LiteralReader),
    Id(LiteralReader),
    Arguments(ArgumentsReader),
    Skip(LiteralReader),
}

/// Reads one call or an array of calls.
#[derive(Debug, Clone)]
pub(super) struct JsonCalls {
    keys: JsonKeys,
    /// Only objects that can be nothing but calls are calls.
    strict: bool,
    /// Only calls of these tools are calls.
    tools: Option<Arc<[ToolSpec]>>,
    /// What the arguments of calls of these tools must pass, if the tool is strict.
    checks: ArgumentChecks,
    array: bool,
    state: State,
    text: String,
    key: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that wait for the name or the id.
    waiting: String,
    has_arguments: bool,
    started: bool,
}

impl JsonCalls {
    pub(super) fn new(keys: &JsonKeys, strict: bool) -> Self {
        JsonCalls {
            keys: keys.clone(),
            strict,
            tools: None,
            checks: ArgumentChecks::default(),
            array: false,
            state: State::Begin,
            text: String::new(),
            key: String::new(),
            name: None,
            id: None,
            waiting: String::new(),
            has_arguments: false,
            started: false,
        }
    }

    /// Reads objects that are calls only if nothing else is in them and a tool has their name. If the tool is strict, a call begins
    /// only when it is complete and has passed its check.
    pub(super) fn unmarked(keys: &JsonKeys, tools: Arc<[ToolSpec]>, checks: ArgumentChecks) -> Self {
        JsonCalls { tools: Some(tools), checks, ..JsonCalls::new(keys, true) }
    }

    /// Reads one character.
    pub(super) fn read(&mut self, character: char, emitter: &mut Emitter) -> Read {
        match &mut self.state {
            State::Begin | State::Element | State::Key | State::Colon => self.read_structure(character, emitter),
            State::KeyText(reader) | State::Name(reader) | State::Id(reader) => {
                let read = reader.read(character, &mut self.text);
                self.after_text(read, character, emitter)
            }
            State::Skip(reader) => {
                let read = reader.read(character, &mut String::new());
                self.after_value(read, character, emitter)
            }
            State::Arguments(reader) => {
                let read = reader.read(character, &mut self.waiting);
                let began = !reader.is_empty();
                self.pass_arguments(began && read != Read::Bad, emitter);
                self.after_value(read, character, emitter)
            }
        }
    }

    /// No more text follows. Returns whether all that was read belongs to calls that began.
    pub(super) fn finish(&mut self, emitter: &mut Emitter) -> bool {
        let named = self.name.is_some() && !self.strict;
        if named && !self.started {
            self.start(emitter);
            emitter.arguments(&self.waiting);
        }
        self.started
    }

    fn read_structure(&mut self, character: char, emitter: &mut Emitter) -> Read {
        match (&self.state, character) {
            (_, space) if space.is_whitespace() => {}
            (State::Begin, '[') if !self.array => {
                self.array = true;
                self.state = State::Element;
            }
            (State::Begin | State::Element, '{') => self.begin_object(),
            // Doubled braces, as in templates that explain a call.
            (State::Key, '{') if self.tools.is_some() && self.key.is_empty() => {}
            (State::Element, ',') | (State::Key, ',') => {}
            (State::Element, ']') if self.strict && !self.started => return Read::Bad,
            (State::Element, ']') => return Read::Done,
            (State::Key, '}') => return self.end_object(emitter),
            (State::Key, '"' | '\'') => {
                let mut reader = LiteralReader::new(None);
                self.text.clear();
                reader.read(character, &mut self.text);
                self.state = State::KeyText(reader);
            }
            (State::Colon, ':') => return self.begin_value(),
            _ => return Read::Bad,
        }
        Read::More
    }

    fn begin_object(&mut self) {
        self.state = State::Key;
        self.key.clear();
        (self.name, self.id, self.has_arguments, self.started) = (None, None, false, false);
        self.waiting.clear();
    }

    fn begin_value(&mut self) -> Read {
        self.text.clear();
        self.state = match self.kind_of_key() {
            Kind::Name => State::Name(LiteralReader::new(None)),
            Kind::Id => State::Id(LiteralReader::new(None)),
            Kind::Arguments if self.is_unknown() => return Read::Bad,
            Kind::Arguments => State::Arguments(ArgumentsReader::new(None)),
            Kind::Other if self.strict && self.key != "type" => return Read::Bad,
            Kind::Other => State::Skip(LiteralReader::new(None)),
        };
        Read::More
    }

    fn kind_of_key(&mut self) -> Kind {
        let key = self.key.as_str();
        if self.keys.name_is_key && self.name.is_none() {
            self.name = Some(self.key.clone());
            return Kind::Arguments;
        }
        match key {
            _ if key == self.keys.name || key == "name" => Kind::Name,
            _ if self.has_arguments && key != "id" && Some(key) != self.keys.id.as_deref() => Kind::Other,
            _ if key == self.keys.arguments || key == "arguments" || key == "parameters" => Kind::Arguments,
            _ if Some(key) == self.keys.id.as_deref() || key == "id" => Kind::Id,
            _ => Kind::Other,
        }
    }

    /// A key, a name or an id, which are short.
    fn after_text(&mut self, read: Read, character: char, emitter: &mut Emitter) -> Read {
        match read {
            Read::More if self.text.len() > MAX_NAME => return Read::Bad,
            Read::More | Read::Refused | Read::Bad => return read,
            Read::Done | Read::DoneBefore => {}
        }
        let value = serde_json::from_str(&self.text).unwrap_or_default();
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        match &self.state {
            State::KeyText(_) => {
                self.key = text;
                self.state = State::Colon;
                return Read::More;
            }
            State::Name(_) if text.is_empty() => return Read::Bad,
            State::Name(_) => self.name = Some(text),
            _ => self.id = Some(text),
        }
        if self.is_unknown() {
            return Read::Bad;
        }
        self.after_value(read, character, emitter)
    }

    fn after_value(&mut self, read: Read, character: char, emitter: &mut Emitter) -> Read {
        match read {
            Read::More | Read::Refused | Read::Bad => read,
            Read::Done => {
                self.state = State::Key;
                Read::More
            }
            Read::DoneBefore => {
                self.state = State::Key;
                self.read_structure(character, emitter)
            }
        }
    }

    /// Begins the call as soon as its first arguments are here and nothing else is missing.
    fn pass_arguments(&mut self, began: bool, emitter: &mut Emitter) {
        if !began {
            return;
        }
        self.has_arguments = true;
        let id_is_missing = self.keys.id_last && self.id.is_none();
        let strict_is_open = self.strict && !self.waiting.starts_with('{');
        if !self.started && (self.name.is_none() || id_is_missing || strict_is_open || self.is_checked()) {
            return;
        }
        self.start(emitter);
        emitter.arguments(&self.waiting);
        self.waiting.clear();
    }

    fn start(&mut self, emitter: &mut Emitter) {
        if !self.started {
            self.started = true;
            emitter.start(self.name.as_deref().unwrap_or_default(), self.id.as_deref());
        }
    }

    /// The call has a name that no tool has.
    fn is_unknown(&self) -> bool {
        self.tools.is_some() && self.name.is_some() && self.tool().is_none()
    }

    /// The call waits until it is complete, because its arguments are checked.
    fn is_checked(&self) -> bool {
        self.tool().is_some_and(|tool| tool.is_strict)
    }

    /// The tool that the call names, if only calls of some tools are calls.
    fn tool(&self) -> Option<&ToolSpec> {
        let name = self.name.as_ref()?;
        self.tools.as_ref()?.iter().find(|tool| tool.name == *name)
    }

    fn passes_check(&self) -> bool {
        let arguments = if self.waiting.is_empty() { "{}" } else { &self.waiting };
        self.name.as_ref().is_some_and(|name| self.checks.accept(name, arguments))
    }

    fn end_object(&mut self, emitter: &mut Emitter) -> Read {
        if self.name.is_none() || (self.strict && !self.has_arguments) {
            return Read::Bad;
        }
        if !self.started && self.is_checked() && !self.passes_check() {
            return Read::Refused;
        }
        self.start(emitter);
        emitter.arguments(&self.waiting);
        self.waiting.clear();
        emitter.end();
        self.state = State::Element;
        if self.array { Read::More } else { Read::Done }
    }
}

/// What the value of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Arguments,
    Id,
    Other,
}
