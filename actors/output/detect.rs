//! Finds the format of a chat template.

use super::derive::Probe;
use super::format::Format;
use super::reasoning::{of_markers, reasoning_of};
use super::render::Render;
use super::table::{CONTENT_MARKS, ENTRIES, Entry};

/// The format of a template: a known one by its signs, else what the template renders.
pub(super) fn detect(source: &str, render: &Render<'_>) -> Format {
    let entry = ENTRIES.iter().find(|entry| entry.fits(source));
    let probe = Probe::new(render);
    let known = entry.and_then(|entry| entry.reasoning).map(|(start, end)| of_markers(start, end));
    let reasoning = reasoning_of(source).or(known).or_else(|| probe.reasoning());
    let derive = || source.contains("tool").then(|| probe.json_calls()).flatten();
    let marks = CONTENT_MARKS.iter().filter(|mark| source.contains(**mark));
    let more = entry.into_iter().flat_map(|entry| entry.content_marks);
    Format {
        tools: entry.map_or_else(derive, |entry| (entry.tools)()),
        channels: entry.and_then(|entry| (entry.channels)()),
        answer_header: probe.answer_header(reasoning.as_ref()),
        reasoning,
        content_marks: marks.chain(more).map(|mark| (*mark).to_owned()).collect(),
    }
}

impl Entry {
    fn fits(&self, source: &str) -> bool {
        self.signs.iter().all(|sign| source.contains(sign)) && !self.without.iter().any(|sign| source.contains(sign))
    }
}
