//! The cast: actors that stream tokens out of a model, the APIs and the command line on top of them.
//!
//! # Layout, in the order of a token's path
//!
//! - [`cli`], [`config`], [`hub`], [`logging`]: what was asked for, and where the model is
//! - [`api`]: HTTP to requests and back
//! - [`request`]: what is asked for and what comes back
//! - [`models`]: which models there are, and who may use which
//! - [`runtime`]: the front door to one of them
//! - [`supervisor`], [`loader`]: who starts everything, and starts it again
//! - [`scheduler`] with its pure core [`policy`]: what runs next
//! - [`executor`], [`experts`]: where it runs
//! - [`sampler`]: logits to text, into [`client`]'s channel
//! - [`metrics`]: what can be scraped
//! - [`trace`]: what happened when
//! - [`simulation`]: an engine without a model

pub mod api;
mod causes;
pub mod cli;
pub mod client;
pub mod config;
pub mod executor;
pub mod experts;
#[cfg(feature = "fault-injection")]
pub mod faults;
pub mod hub;
pub mod loader;
pub mod logging;
pub mod metrics;
pub mod models;
pub mod policy;
pub mod request;
pub mod runtime;
pub mod sampler;
pub mod scheduler;
pub mod simulation;
pub mod supervisor;
pub mod trace;
