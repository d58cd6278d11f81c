//! The tools of MCP servers (Model Context Protocol): programs on this machine, or services that speak HTTP.
//!
//! It knows no terminal and no model. Who may call what is decided by the code that uses it.
//!
//! # Layout, from the file to a result
//!
//! - [`config_file`]: the file that names the servers, with [`placeholders`] for variables
//! - [`servers`]: all servers, started and listed together
//! - [`connection`]: one server: its session and its tools
//! - [`process`]: a server that is a child process, and [`process_group`], by which none outlives this process, and
//!   [`first_output`] for an error about it
//! - [`http_client`]: the requests to a server that speaks HTTP, with [`event_limit`] for its streams
//! - [`tool_name`]: the names of tools as models know them
//! - [`tool_result`]: what a call returns, in the form that models take
//! - [`error`]: why a server or a call failed

pub mod config_file;
mod connection;
pub mod error;
mod event_limit;
mod first_output;
mod http_client;
mod placeholders;
mod process;
pub mod process_group;
pub mod servers;
mod tool_name;
pub mod tool_result;
