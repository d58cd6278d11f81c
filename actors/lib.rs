//! The actors that serve a language model, with the HTTP APIs and the command line on top of them.
//!
//! # Layout, from the command line to the token
//!
//! - [`cli`], [`config`], [`hub`], [`logging`]: read the user's settings and find the model
//! - [`api`]: HTTP requests and responses
//! - [`serving`]: what all protocols share
//! - [`models`]: which models exist and which are loaded
//! - [`pipeline`]: the actors of one model
//! - [`core`](mod@core): leaf types that all other modules use
//! - [`metrics`]: metrics for Prometheus
//! - [`trace`]: traces of steps and requests

#![forbid(unsafe_code)]

pub mod api;
pub mod cli;
pub mod config;
pub mod core;
pub mod hub;
pub mod logging;
pub mod metrics;
pub mod models;
pub mod pipeline;
pub mod serving;
pub mod trace;
