//! The `async-openai` crate against a listening server.
#![allow(clippy::unwrap_used)]
