//! Constraints on the output: which tokens a JSON schema, a regular expression or a grammar allows next.
//!
//! - [`grammar`]: what may be asked for, and [`gbnf`], which translates llama.cpp's notation
//! - [`structural_tag`]: translates vLLM's structural tags, and [`lark`] builds grammars of rules
//! - [`regular`]: translates Lark grammars without recursion to regular expressions
//! - [`schema`]: prepares JSON schemas, and finds the place of an error in them; [`pattern`] and [`escapes`]: their patterns
//!   and the escapes of texts
//! - [`vocabulary`]: the tokens of a model, as a tree of bytes
//! - [`compiler`]: compiles a grammar for a model, within limits, and keeps what was compiled last
//! - [`state`]: the state of one sequence: the tokens allowed next, and the tokens so far
//!
//! The library llguidance does the work. A constraint never fails open: what it cannot enforce is an error at compilation,
//! and an error at run time ends the sequence.

pub mod compiler;
mod error;
mod escapes;
mod free_text;
mod gbnf;
mod grammar;
mod lark;
mod mask;
mod pattern;
mod prepared;
mod regular;
mod schema;
mod state;
mod structural_tag;
#[cfg(test)]
mod testing;
mod vocabulary;

pub use compiler::{Constraint, ConstraintCompiler};
pub use error::{ConstraintError, GrammarError};
pub use grammar::Grammar;
pub use lark::LarkRules;
pub use mask::TokenMask;
pub use pattern::regex_of_pattern;
pub use regular::{LarkError, regex_of_lark};
pub use schema::lark_of_schema;
pub use state::ConstraintState;
