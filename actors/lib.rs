//! The actors that serve a language model, with the HTTP APIs and the command line on top of them.
//!
//! # Layout, from the command line to the token
//!
//! - [`cli`], [`config`], [`hub`], [`logging`]: read the user's settings and find the model
//! - [`api`]: HTTP requests and responses
//! - [`session`]: a model inside of another program, without HTTP
//! - [`serving`]: the path of a request, the same for all protocols
//! - [`models`]: which models exist and which are loaded
//! - [`mcp`]: the tools of MCP servers, for `cuelight run`
//! - [`output`]: what the text of a model means: text, reasoning, tool calls
//! - [`pipeline`]: the actors of one model
//! - [`core`](mod@core): leaf types that all other modules use
//! - [`kv_events`]: tells routers what the KV caches hold
//! - [`metrics`]: metrics for Prometheus
//! - [`trace`]: traces of steps and requests
//! - [`recording`]: recordings of requests, for `cuelight replay`

#![forbid(unsafe_code)]

pub mod api;
pub mod cli;
pub mod config;
pub mod core;
pub mod hub;
pub mod kv_events;
pub mod logging;
pub mod mcp;
pub mod metrics;
pub mod models;
pub mod output;
pub mod pipeline;
pub mod recording;
pub mod serving;
pub mod session;
pub mod trace;
