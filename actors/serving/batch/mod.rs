//! Batches: many requests whose answers may take a while, from a file on the command line or from clients of a server.
//!
//! A file has [`requests`], a [`sender`] sends them to the routes of the API in this process, and every [`answer`] is a line of a
//! file of [`answers`], which a later process continues. A server keeps the files and batches of its clients in a [`store`], and a
//! [`worker`] answers them.

pub mod answer;
pub mod answers;
pub mod error;
pub mod requests;
pub mod sender;
pub mod store;
pub mod worker;
