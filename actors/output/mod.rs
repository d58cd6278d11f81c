//! Turns the text that a model writes into typed deltas: text, reasoning, tool calls.
//!
//! # Layout
//!
//! - [`delta`]: what comes out
//! - [`output_format`]: the format of a chat template, found by [`detect`] in [`table`] and [`reasoning`],
//!   or by [`derive`](mod@derive) from what the template renders
//! - [`mod@format`]: a format as data
//! - [`parser`]: the parser of one answer with its [`options`], with [`region`], [`start`], and [`messages`] with [`channels`]
//! - [`call`]: the readers of calls: [`json_call`], [`named`] with [`tagged`] or JSON [`arguments`], [`python`]
//! - [`argument_checks`]: checks of calls without markers, by [`schema_check`], [`schema_match`], [`text_check`] and [`number_check`]
//! - [`literal`]: values as JSON; [`coerce`](mod@coerce) and [`schema`] with [`alternatives`](mod@alternatives) for text of unknown
//!   type
//! - [`search`]: the search for markers
//! - [`grammar`], [`grammar_values`] and [`grammar_text`]: grammars for calls that a request demands; [`grammar_free`]: for free
//!   text with calls

mod alternatives;
mod argument_checks;
mod arguments;
mod call;
mod channels;
mod coerce;
mod delta;
mod derive;
mod detect;
mod emit;
mod format;
mod grammar;
mod grammar_free;
mod grammar_json;
mod grammar_rules;
#[cfg(test)]
mod grammar_tests;
mod grammar_text;
mod grammar_values;
mod ids;
mod json_call;
mod json_text;
mod literal;
mod marks;
mod messages;
mod named;
mod nested;
mod number_check;
mod options;
mod output_format;
mod parser;
mod python;
mod read;
mod reasoning;
mod region;
mod render;
#[cfg(test)]
mod samples;
mod schema;
mod schema_check;
mod schema_match;
mod search;
mod start;
mod string;
mod table;
mod tagged;
#[cfg(test)]
mod tests;
mod text_check;
#[cfg(test)]
mod unmarked_tests;
mod value;

pub use argument_checks::ArgumentChecks;
pub use delta::{Delta, ToolSpec};
pub use format::ReasoningMarks;
pub use grammar_free::FreeGrammar;
pub use options::ParserOptions;
pub use output_format::OutputFormat;
pub use parser::OutputParser;
pub use render::Render;
pub use schema_check::SchemaCheck;
