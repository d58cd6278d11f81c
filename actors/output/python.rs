//! Calls that are written as in Python: `[f(a=1), g(b="x")]`.

use super::emit::Emitter;
use super::json_text::quoted;
use super::literal::LiteralReader;
use super::read::Read;

/// Characters of a name.
const MAX_NAME: usize = 1024;

#[derive(Debug, Clone)]
enum State {
    /// The list or a single call must follow.
    Begin,
    /// A call must follow, or the list's end.
    Element,
    Name,
    /// An argument's name must follow, or the call's end.
    Argument,
    ArgumentName,
    Value(LiteralReader),
    /// A comma or the call's end must follow.
    AfterValue,
}

/// Reads a list of calls, or one call without a list around it.
#[derive(Debug, Clone)]
pub(super) struct PythonCalls {
    list: bool,
    state: State,
    name: String,
    any: bool,
    started: bool,
}

impl PythonCalls {
    pub(super) fn new() -> Self {
        PythonCalls { list: false, state: State::Begin, name: String::new(), any: false, started: false }
    }

    /// Reads one character.
    pub(super) fn read(&mut self, character: char, emitter: &mut Emitter) -> Read {
        if let State::Value(reader) = &mut self.state {
            let mut out = String::new();
            let read = reader.read(character, &mut out);
            return self.after_value(read, character, &out, emitter);
        }
        match (&self.state, character) {
            (State::Begin, '[') if !self.list => {
                self.list = true;
                self.state = State::Element;
            }
            (State::Name | State::ArgumentName, c) if is_name(c) && self.name.len() < MAX_NAME => self.name.push(c),
            (_, space) if space.is_whitespace() => {}
            (State::Element, ',') => {}
            (State::Element, ']') => return Read::Done,
            (State::Begin | State::Element, c) if is_name(c) => self.begin_name(c, State::Name),
            (State::Name, '(') => self.begin_call(emitter),
            (State::Argument, c) if is_name(c) => self.begin_name(c, State::ArgumentName),
            (State::ArgumentName, '=') => self.begin_value(emitter),
            (State::AfterValue, ',') => self.state = State::Argument,
            (State::Argument | State::AfterValue, ')') => return self.end_call(emitter),
            _ => return Read::Bad,
        }
        Read::More
    }

    /// No more text follows. Returns whether all that was read belongs to calls that began.
    pub(super) fn finish(&mut self) -> bool {
        self.started
    }

    fn begin_name(&mut self, first: char, state: State) {
        self.name.clear();
        self.name.push(first);
        self.state = state;
    }

    fn begin_call(&mut self, emitter: &mut Emitter) {
        emitter.start(&self.name, None);
        (self.started, self.any) = (true, false);
        self.state = State::Argument;
    }

    fn begin_value(&mut self, emitter: &mut Emitter) {
        emitter.arguments(if self.any { ", " } else { "{" });
        emitter.arguments(&format!("{}: ", quoted(&self.name)));
        self.any = true;
        self.state = State::Value(LiteralReader::new(None));
    }

    fn after_value(&mut self, read: Read, character: char, out: &str, emitter: &mut Emitter) -> Read {
        if read != Read::Bad {
            emitter.arguments(out);
        }
        match read {
            Read::More | Read::Refused | Read::Bad => read,
            Read::Done => {
                self.state = State::AfterValue;
                Read::More
            }
            Read::DoneBefore => {
                self.state = State::AfterValue;
                self.read(character, emitter)
            }
        }
    }

    fn end_call(&mut self, emitter: &mut Emitter) -> Read {
        if self.any {
            emitter.arguments("}");
        }
        emitter.end();
        self.started = self.list;
        self.state = State::Element;
        if self.list { Read::More } else { Read::Done }
    }
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '.' | '-')
}
