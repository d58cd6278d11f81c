//! The markers that matter in each part of an answer.

use super::format::{Channels, Format, UNMARKED};
use super::options::ParserOptions;
use super::search::MarkerSet;

/// What a marker means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    ReasoningStart,
    ReasoningEnd,
    /// No content.
    Dropped,
    SectionBegin,
    SectionEnd,
    CallBegin,
    CallEnd,
    /// A text of [`UNMARKED`].
    Unmarked,
    HeaderBegin,
    HeaderEnd,
    MessageEnd,
}

/// Markers with their meanings.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    pub set: MarkerSet,
    kinds: Vec<Mark>,
}

impl Marks {
    fn new(marks: Vec<(Mark, &str)>) -> Self {
        let mut unique: Vec<(Mark, &str)> = Vec::new();
        for (kind, text) in marks {
            if !text.is_empty() && unique.iter().all(|(_, other)| *other != text) {
                unique.push((kind, text));
            }
        }
        let set = MarkerSet::new(unique.iter().map(|(_, text)| (*text).to_owned()));
        Marks { set, kinds: unique.into_iter().map(|(kind, _)| kind).collect() }
    }

    pub(super) fn kind(&self, index: usize) -> Mark {
        self.kinds[index]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// The markers of every part.
#[derive(Debug, Clone)]
pub(super) struct AllMarks {
    pub text: Marks,
    pub reasoning: Marks,
    pub section: Marks,
    pub header: Marks,
}

impl AllMarks {
    /// The markers of a format, without those of what is not to be parsed.
    pub(super) fn new(format: &Format, options: &ParserOptions) -> Self {
        let reasoning = options.parse_reasoning;
        let triggers = if options.parse_tool_calls { triggers(format) } else { Vec::new() };
        let unmarked = options.reads_unmarked(format);
        let messages: Vec<_> = format.channels.iter().flat_map(message_marks).collect();
        let mut text = triggers.clone();
        text.extend(reasoning.then(|| reasoning_marks(format)).into_iter().flatten());
        text.extend(format.content_marks.iter().map(|mark| (Mark::Dropped, mark.as_str())));
        text.extend(UNMARKED.iter().filter(|_| unmarked).map(|(begin, _)| (Mark::Unmarked, *begin)));
        let mut inside = reasoning_marks(format);
        inside.extend(triggers);
        text.extend(messages.iter().copied());
        inside.extend(messages.iter().copied());
        let mut section = section_marks(format);
        let around = UNMARKED.iter().filter(|_| unmarked).flat_map(|&(begin, end)| [begin, end]);
        section.extend(around.map(|mark| (Mark::Unmarked, mark)));
        section.extend(messages);
        let header = format.channels.iter().flat_map(header_marks).collect();
        AllMarks {
            text: Marks::new(text),
            reasoning: Marks::new(inside),
            section: Marks::new(section),
            header: Marks::new(header),
        }
    }
}

/// The markers that begin calls. In an answer of several messages calls stand in messages of their own.
fn triggers(format: &Format) -> Vec<(Mark, &str)> {
    match &format.tools {
        Some(tools) if format.channels.is_none() => {
            let section = tools.section.iter().map(|(begin, _)| (Mark::SectionBegin, begin.as_str()));
            section.chain([(Mark::CallBegin, tools.call_begin.as_str())]).collect()
        }
        _ => Vec::new(),
    }
}

fn reasoning_marks(format: &Format) -> Vec<(Mark, &str)> {
    let Some(reasoning) = &format.reasoning else { return Vec::new() };
    let stray = reasoning.stray.iter().map(|mark| (Mark::Dropped, mark.as_str()));
    [(Mark::ReasoningStart, reasoning.start.as_str()), (Mark::ReasoningEnd, &reasoning.end)]
        .into_iter()
        .chain(stray)
        .collect()
}

fn section_marks(format: &Format) -> Vec<(Mark, &str)> {
    let Some(tools) = &format.tools else { return Vec::new() };
    let mut marks = vec![(Mark::CallBegin, tools.call_begin.as_str())];
    if let Some((begin, end)) = &tools.section {
        marks.extend([(Mark::SectionBegin, begin.as_str()), (Mark::SectionEnd, end)]);
    }
    marks.extend(tools.call_end.iter().map(|end| (Mark::CallEnd, end.as_str())));
    marks
}

fn message_marks(channels: &Channels) -> Vec<(Mark, &str)> {
    let begins = [(Mark::HeaderBegin, channels.begin.as_str()), (Mark::HeaderBegin, &channels.channel)];
    begins.into_iter().chain(channels.ends.iter().map(|end| (Mark::MessageEnd, end.as_str()))).collect()
}

fn header_marks(channels: &Channels) -> [(Mark, &str); 1] {
    [(Mark::HeaderEnd, &channels.header_end)]
}
