//! Recordings of requests, for `cuelight replay`.
//!
//! - [`entry`]: one request that has ended, as a line of JSON
//! - [`recorder`]: writes the entries of a server
//! - [`reader`]: reads them
//!
//! Unless texts are asked for, an entry has numbers only: lengths, times, parameters, and fingerprints of the prompt's blocks,
//! which show where prompts begin alike. A fingerprint depends on a secret that is not written.

pub mod entry;
pub mod reader;
pub mod recorder;

pub use self::entry::{Content, Entry, EntryTimes};
pub use self::reader::{InvalidLine, ReadError, Recorded, read};
pub use self::recorder::Recorder;
