//! The known markers of reasoning.

use super::format::Reasoning;

/// Start and end. The first whose end stands in a template is its own.
const MARKERS: &[(&str, &str)] = &[
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<think>", "</think>"),
];

/// The markers of the reasoning that a template shows.
pub(super) fn reasoning_of(source: &str) -> Option<Reasoning> {
    let (start, end) = MARKERS.iter().find(|(_, end)| source.contains(end))?;
    Some(of_markers(start, end))
}

/// Reasoning between two markers.
pub(super) fn of_markers(start: &str, end: &str) -> Reasoning {
    let is_channel = start.starts_with("<|channel>");
    let stray = if is_channel { vec!["<|channel>".to_owned(), "<channel|>".to_owned()] } else { Vec::new() };
    Reasoning { start: start.to_owned(), end: end.to_owned(), anywhere: is_channel, stray }
}
