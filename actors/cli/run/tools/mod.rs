//! The tools of MCP servers in the terminal: which calls run, and what the user sees of them.
//!
//! - [`toolbox`]: the servers of `--mcp`, with [`startup`]
//! - [`approval`]: which tools run without asking; [`asker`]: asks the user
//! - [`calls`]: runs the calls of one answer
//! - [`call_text`]: a call in one line
//! - [`listing`]: what `/tools` prints

mod approval;
pub mod asker;
mod call_text;
mod calls;
mod listing;
mod startup;
pub mod toolbox;
