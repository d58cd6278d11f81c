//! The parser of an answer.
//!
//! It reads one character at a time, so its result cannot depend on how the text is split.

use std::collections::VecDeque;
use std::sync::Arc;

use super::call::CallReader;
use super::delta::Delta;
use super::emit::Emitter;
use super::format::{Format, UNMARKED};
use super::ids::IdSource;
use super::marks::{AllMarks, Mark, Marks};
use super::options::ParserOptions;
use super::output_format::OutputFormat;
use super::read::Read;
use super::region::{Kind, Region};
use super::search::{Found, Search};
use super::start::{Start, start};

/// Turns the text of an answer into deltas.
#[derive(Debug)]
pub struct OutputParser {
    pub(super) format: Arc<Format>,
    pub(super) options: ParserOptions,
    pub(super) marks: AllMarks,
    pub(super) mode: Mode,
    pub(super) search: Search,
    pub(super) queue: VecDeque<char>,
    pub(super) emitter: Emitter,
    /// The text or reasoning that is written, or that a call interrupts.
    pub(super) region: Region,
    /// What was read since the last delta of a call, which becomes text if it turns out to be no call.
    pub(super) raw: String,
    /// Calls of the section before the one that is read.
    pub(super) calls: usize,
    /// The calls that are read have no markers of the format; this text ends them, if it is not empty.
    unmarked: Option<&'static str>,
    pub(super) header: String,
    /// The message's markers stay in the text.
    pub(super) keeps_markers: bool,
}

/// What is read.
#[derive(Debug)]
pub(super) enum Mode {
    /// Text or reasoning.
    Region,
    /// Between the calls of a section.
    Section,
    Call(CallReader),
    /// The header of a message.
    Header,
}

impl OutputParser {
    /// A parser for one answer.
    #[must_use]
    pub fn new(format: &OutputFormat, options: ParserOptions) -> Self {
        Self::with_ids(format, options, IdSource::Random)
    }

    /// A parser whose new ids come from `ids`.
    pub(super) fn with_ids(format: &OutputFormat, options: ParserOptions, ids: IdSource) -> Self {
        let format = format.inner();
        let style = format.tools.as_ref().map(|tools| tools.ids).unwrap_or_default();
        let marks = AllMarks::new(&format, &options);
        let mut parser = OutputParser {
            marks,
            mode: Mode::Region,
            search: Search::default(),
            queue: VecDeque::new(),
            emitter: Emitter::new(ids, style),
            region: Region::first(Kind::Text),
            raw: String::new(),
            calls: 0,
            unmarked: None,
            header: String::new(),
            keeps_markers: false,
            options,
            format,
        };
        parser.begin();
        parser
    }

    /// Adds text. The joined deltas do not depend on how the text is split.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        for character in text.chars() {
            self.queue.push_back(character);
            self.run();
        }
        self.emitter.drain(out);
    }

    /// No more text follows.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        while let Some(found) = self.finish_search() {
            self.handle(found);
            self.run();
        }
        match &mut self.mode {
            Mode::Region => self.region.finish(&mut self.emitter),
            Mode::Section if self.calls == 0 => self.give_back(),
            Mode::Section => {}
            Mode::Call(reader) => {
                if !reader.finish(&mut self.emitter) && !self.emitter.is_open() {
                    self.give_back();
                }
            }
            Mode::Header => self.give_back(),
        }
        self.region.finish(&mut self.emitter);
        self.emitter.abandon();
        self.emitter.drain(out);
    }

    /// The text that comes now is reasoning.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        self.region.kind() == Kind::Reasoning && matches!(self.mode, Mode::Region)
    }

    /// A call began.
    #[must_use]
    pub fn has_called(&self) -> bool {
        self.emitter.calls() > 0
    }

    fn begin(&mut self) {
        match start(&self.format, &self.options.prompt_tail) {
            Start::Text => {}
            Start::Reasoning if self.options.parse_reasoning => self.region = Region::after_marker(Kind::Reasoning),
            Start::Reasoning => {}
            Start::Header => self.mode = Mode::Header,
            Start::Message(header) => {
                self.header = header;
                self.begin_message();
            }
        }
    }

    fn run(&mut self) {
        while let Some(character) = self.queue.pop_front() {
            match &mut self.mode {
                Mode::Call(reader) => {
                    let before = self.emitter.progress();
                    let read = reader.read(character, &mut self.emitter);
                    self.after_read(read, character, before);
                }
                _ => {
                    let found = self.search_read(character);
                    self.handle(found);
                }
            }
        }
    }

    fn current_marks(&self) -> &Marks {
        match &self.mode {
            Mode::Region if self.region.kind() == Kind::Reasoning => &self.marks.reasoning,
            Mode::Region => &self.marks.text,
            Mode::Header => &self.marks.header,
            _ => &self.marks.section,
        }
    }

    fn search_read(&mut self, character: char) -> Found {
        let mut search = std::mem::take(&mut self.search);
        let found = search.read(&self.current_marks().set, character);
        self.search = search;
        found
    }

    fn finish_search(&mut self) -> Option<Found> {
        let mut search = std::mem::take(&mut self.search);
        let found = search.finish(&self.current_marks().set);
        self.search = search;
        found
    }

    fn read_again(&mut self, text: &str) {
        text.chars().rev().for_each(|character| self.queue.push_front(character));
    }

    fn handle(&mut self, found: Found) {
        match found {
            Found::Nothing => {}
            Found::Character(character, rest) => {
                self.read_again(&rest);
                self.character(character);
            }
            Found::Marker(index, rest) => {
                self.read_again(&rest);
                let (kind, marker) = (self.current_marks().kind(index), self.current_marks().set.get(index).to_owned());
                match self.mode {
                    Mode::Region => self.marker_in_region(kind, &marker),
                    Mode::Header => self.begin_message(),
                    _ => self.marker_in_section(kind, &marker),
                }
            }
        }
    }

    fn character(&mut self, character: char) {
        match self.mode {
            Mode::Region => {
                if self.region.kind() == Kind::Text && self.region.is_fresh() && self.may_begin_call(character) {
                    self.unmarked = self.options.reads_unmarked(&self.format).then_some("");
                    (self.raw, self.calls) = (self.region.take_space(), 0);
                    return self.begin_call(character, true);
                }
                let holds = !self.current_marks().is_empty();
                self.region.write(character, holds, &mut self.emitter);
            }
            Mode::Header => self.character_in_header(character),
            _ => self.character_in_section(character),
        }
    }

    /// Whether a call without a marker may begin with a character, which is the first of a text.
    fn may_begin_call(&self, character: char) -> bool {
        let bare = self.format.tools.as_ref().and_then(|tools| tools.bare);
        let is_bare = self.options.parse_tool_calls && bare == Some(character);
        is_bare || (character == '{' && self.options.reads_unmarked(&self.format))
    }

    fn marker_in_region(&mut self, kind: Mark, marker: &str) {
        let reasoning = self.format.reasoning.as_ref().is_some_and(|reasoning| reasoning.anywhere);
        let is_text = self.region.kind() == Kind::Text;
        match kind {
            Mark::Dropped => self.region.drop_space_if_fresh(),
            Mark::ReasoningStart if is_text && (self.region.is_fresh() || reasoning) => {
                self.region = Region::after_marker(Kind::Reasoning);
            }
            Mark::ReasoningEnd if !is_text || self.region.is_fresh() => self.region = Region::after_marker(Kind::Text),
            Mark::ReasoningEnd if reasoning => {}
            // The prompt has begun the reasoning already.
            Mark::ReasoningStart if !is_text && self.region.is_fresh() => {}
            Mark::SectionBegin | Mark::CallBegin if is_text || !self.region.mentions() => {
                self.raw = self.region.take_space();
                self.calls = 0;
                self.enter_section_or_call(kind, marker);
            }
            Mark::Unmarked if is_text && !self.region.mentions() => self.enter_unmarked(marker),
            Mark::HeaderBegin | Mark::MessageEnd => self.end_message(kind, marker),
            _ => self.region.write_text(marker, &mut self.emitter),
        }
    }

    fn enter_unmarked(&mut self, marker: &str) {
        self.raw = self.region.take_space() + marker;
        self.calls = 0;
        self.unmarked = UNMARKED.iter().find(|(begin, _)| *begin == marker).map(|(_, end)| *end);
        self.mode = Mode::Section;
    }

    fn enter_section_or_call(&mut self, kind: Mark, marker: &str) {
        self.raw.push_str(marker);
        self.unmarked = None;
        let Some(tools) = &self.format.tools else { return };
        self.mode = match kind {
            Mark::CallBegin => Mode::Call(CallReader::new(tools, &self.options.tools, false)),
            _ => Mode::Section,
        };
    }

    fn marker_in_section(&mut self, kind: Mark, marker: &str) {
        match kind {
            Mark::CallBegin | Mark::SectionBegin => self.enter_section_or_call(kind, marker),
            Mark::CallEnd if self.calls > 0 => {}
            Mark::SectionEnd if self.calls > 0 => self.leave_section(),
            Mark::Unmarked if self.calls > 0 => self.unmarked_in_section(kind, marker),
            Mark::HeaderBegin | Mark::MessageEnd => {
                if self.calls == 0 {
                    self.give_back();
                }
                self.end_message(kind, marker);
            }
            _ => {
                self.raw.push_str(marker);
                self.give_back();
            }
        }
    }

    /// The end of calls without markers, or the beginning of something else.
    fn unmarked_in_section(&mut self, kind: Mark, marker: &str) {
        let is_end = self.unmarked == Some(marker);
        self.leave_section();
        if !is_end {
            self.marker_in_region(kind, marker);
        }
    }

    fn character_in_section(&mut self, character: char) {
        let begins_directly = self.format.tools.as_ref().is_some_and(|tools| {
            let without_marker = tools.call_begin.is_empty() || matches!(character, '{' | '[');
            without_marker && (self.calls == 0 || matches!(character, '{' | '['))
        });
        match character {
            space if space.is_whitespace() => self.raw.push(space),
            ',' | ';' if self.calls > 0 => self.raw.push(character),
            // Some models double the braces of a call.
            '}' if self.calls > 0 && self.unmarked.is_some() => self.raw.push(character),
            _ if begins_directly => {
                if self.calls > 0 && self.options.checks_unmarked(&self.format) {
                    self.unmarked.get_or_insert("");
                }
                self.begin_call(character, false);
            }
            _ if self.calls == 0 => {
                self.read_again(character.encode_utf8(&mut [0; 4]));
                self.give_back();
            }
            _ => {
                self.read_again(character.encode_utf8(&mut [0; 4]));
                self.leave_section();
            }
        }
    }

    fn begin_call(&mut self, first: char, bare: bool) {
        let Some(tools) = &self.format.tools else { return };
        self.mode = Mode::Call(match self.unmarked {
            Some(_) => {
                let checks = self.options.unmarked_calls.clone().unwrap_or_default();
                CallReader::unmarked(tools, &self.options.tools, checks)
            }
            None => CallReader::beginning_with(first, tools, &self.options.tools, bare),
        });
        self.read_again(first.encode_utf8(&mut [0; 4]));
    }

    fn leave_section(&mut self) {
        self.unmarked = None;
        self.raw.clear();
        self.mode = Mode::Region;
    }

    fn after_read(&mut self, read: Read, character: char, progress_before: u64) {
        if matches!(read, Read::More | Read::Done | Read::Refused) {
            self.raw.push(character);
        }
        if self.emitter.progress() != progress_before {
            self.raw.clear();
        }
        match read {
            Read::More => return,
            Read::Done | Read::DoneBefore => {
                self.calls += 1;
                self.raw.clear();
                self.region = Region::after_marker(Kind::Text);
                self.mode = Mode::Section;
            }
            Read::Refused => return self.refuse_call(),
            Read::Bad => self.give_back(),
        }
        if read != Read::Done {
            self.queue.push_front(character);
        }
    }

    /// What was read is text. The next call of the section may still be one.
    fn refuse_call(&mut self) {
        let raw = std::mem::take(&mut self.raw);
        self.region.write_text(&raw, &mut self.emitter);
        (self.mode, self.calls) = (Mode::Section, 0);
    }

    /// What was read is no call: it is text, or belongs to the reasoning that it seemed to interrupt.
    pub(super) fn give_back(&mut self) {
        if self.emitter.is_open() {
            self.emitter.abandon();
            self.region = Region::first(Kind::Text);
        }
        self.emitter.forget_announced();
        self.unmarked = None;
        self.mode = Mode::Region;
        let raw = std::mem::take(&mut self.raw);
        self.region.write_text(&raw, &mut self.emitter);
    }
}
