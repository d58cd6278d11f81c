//! Arguments that stand in elements, as JSON.

use super::emit::Emitter;
use super::format::Tagged;
use super::json_text::quoted;
use super::nested::nested_value;
use super::read::Read;
use super::schema::Types;
use super::search::{Found, MarkerSet, Search};
use super::value::{Kind, ValueWriter};

/// Characters of a key or of attributes.
const MAX_HEAD: usize = 1024;
/// Begins a value in which markers are text.
pub(super) const CDATA: &str = "<![CDATA[";

#[derive(Debug, Clone)]
enum State {
    /// A parameter or the call's end must follow.
    Between,
    Key,
    Head,
    /// The marker before the value must follow.
    BeforeValue,
    Value(ValueWriter),
}

/// Reads the arguments of one call, with the marker that ends the call.
#[derive(Debug, Clone)]
pub(super) struct TaggedReader {
    format: Tagged,
    call_end: Vec<String>,
    schema: serde_json::Value,
    state: State,
    search: Search,
    /// The markers of the state.
    markers: MarkerSet,
    key: String,
    head: String,
    any: bool,
}

impl TaggedReader {
    /// `schema` is the tool's; `call_end` must end the call.
    pub(super) fn new(format: &Tagged, call_end: &[String], schema: serde_json::Value) -> Self {
        let mut reader = TaggedReader {
            format: format.clone(),
            call_end: call_end.to_vec(),
            schema,
            state: State::Between,
            search: Search::default(),
            markers: MarkerSet::default(),
            key: String::new(),
            head: String::new(),
            any: false,
        };
        reader.enter(State::Between);
        reader
    }

    /// Reads one character. The call's end is `Done`.
    pub(super) fn read(&mut self, character: char, emitter: &mut Emitter) -> Read {
        let found = self.search.read(&self.markers, character);
        self.handle(found, emitter)
    }

    /// No more text follows. Arguments that are complete but for the call's end are closed.
    pub(super) fn finish(&mut self, emitter: &mut Emitter) {
        while let Some(found) = self.search.finish(&self.markers) {
            if self.handle(found, emitter) != Read::More {
                break;
            }
        }
        match std::mem::replace(&mut self.state, State::Key) {
            State::Between if self.any => {
                emitter.arguments("}");
                emitter.end();
            }
            State::Value(writer) => {
                let mut out = String::new();
                writer.abandon(&mut out);
                emitter.arguments(&out);
            }
            _ => {}
        }
    }

    fn handle(&mut self, found: Found, emitter: &mut Emitter) -> Read {
        let rest = match found {
            Found::Nothing => return Read::More,
            Found::Character(character, rest) => match self.character(character, emitter) {
                Read::More => rest,
                other => return other,
            },
            Found::Marker(index, rest) => match self.marker(index, emitter) {
                Read::More => rest,
                other => return other,
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

    fn character(&mut self, character: char, emitter: &mut Emitter) -> Read {
        match &mut self.state {
            State::Between | State::BeforeValue if character.is_whitespace() => {}
            State::Between | State::BeforeValue => return Read::Bad,
            State::Key if self.key.len() < MAX_HEAD => self.key.push(character),
            State::Head if self.head.len() < MAX_HEAD => self.head.push(character),
            State::Key | State::Head => return Read::Bad,
            State::Value(writer) => {
                let mut out = String::new();
                writer.write(character, &mut out);
                emitter.arguments(&out);
            }
        }
        Read::More
    }

    fn marker(&mut self, index: usize, emitter: &mut Emitter) -> Read {
        emitter.begin_announced();
        match &mut self.state {
            State::Between if index == 0 => {
                self.key.clear();
                self.head.clear();
                self.enter(State::Key);
            }
            State::Between => {
                emitter.arguments(if self.any { "}" } else { "{}" });
                emitter.end();
                return Read::Done;
            }
            State::Key => return self.after_key(emitter),
            State::Head => self.begin_value(emitter),
            State::BeforeValue => self.enter_value(emitter),
            State::Value(writer) if index == 1 && writer.is_blank() => {
                let end = format!("]]>{}", self.value_end());
                self.markers = MarkerSet::new([end]);
            }
            State::Value(_) if index == 1 => self.text(CDATA, emitter),
            State::Value(_) => self.end_value(emitter),
        }
        Read::More
    }

    fn text(&mut self, text: &str, emitter: &mut Emitter) {
        for character in text.chars() {
            self.character(character, emitter);
        }
    }

    fn after_key(&mut self, emitter: &mut Emitter) -> Read {
        self.key = self.key.trim().to_owned();
        if self.key.is_empty() {
            return Read::Bad;
        }
        match self.format.head_end {
            Some(_) => self.enter(State::Head),
            None => self.begin_value(emitter),
        }
        Read::More
    }

    fn begin_value(&mut self, emitter: &mut Emitter) {
        match self.format.value_begin {
            Some(_) => self.enter(State::BeforeValue),
            None => self.enter_value(emitter),
        }
    }

    fn enter_value(&mut self, emitter: &mut Emitter) {
        emitter.arguments(if self.any { "," } else { "{" });
        emitter.arguments(&format!("{}:", quoted(&self.key)));
        self.any = true;
        let types = Types::of_parameter(&self.schema, &self.key);
        let kind = kind_of_head(&self.head).unwrap_or(Kind::Types(types));
        self.enter(State::Value(ValueWriter::new(kind, self.format.lines)));
    }

    fn end_value(&mut self, emitter: &mut Emitter) {
        let mut out = String::new();
        if let State::Value(writer) = std::mem::replace(&mut self.state, State::Between) {
            let nested = writer.text().filter(|_| self.format.nested);
            let value = nested.and_then(|text| nested_value(text, &self.format, &self.key, &self.schema));
            match value {
                Some(value) => out = value,
                None => writer.end(&mut out),
            }
        }
        emitter.arguments(&out);
        self.enter(State::Between);
    }

    fn value_end(&self) -> String {
        self.format.end.replace("{key}", &self.key)
    }

    fn enter(&mut self, state: State) {
        let format = &self.format;
        self.markers = match &state {
            State::Between => MarkerSet::new(std::iter::once(format.begin.clone()).chain(self.call_end.clone())),
            State::Key => MarkerSet::new([format.key_end.clone()]),
            State::Head => MarkerSet::new(format.head_end.clone()),
            State::BeforeValue => MarkerSet::new(format.value_begin.clone()),
            State::Value(_) => {
                MarkerSet::new(std::iter::once(self.value_end()).chain(format.cdata.then(|| CDATA.to_owned())))
            }
        };
        self.state = state;
    }
}

/// The type that attributes like `string="true"` or `type="number"` tell.
fn kind_of_head(head: &str) -> Option<Kind> {
    let head = head.trim();
    match head {
        _ if head.contains("string=\"true\"") || head.contains("type=\"string\"") => Some(Kind::Types(Types::STRING)),
        _ if head.contains("string=\"false\"") || head.contains("type=\"") => Some(Kind::Json),
        _ => None,
    }
}
