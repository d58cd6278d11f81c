//! The server's side of ZMTP 3.0, the protocol of ZeroMQ, as far as PUB and ROUTER sockets without security need it
//! (<https://rfc.zeromq.org/spec/23>, and the commands of <https://rfc.zeromq.org/spec/37>).
//!
//! Everything that a peer can make this server hold or wait for is limited: connections, the time of a handshake and of a write,
//! the bytes of a frame and the parts of a message.
//!
//! - `frame`: frames, messages and commands
//! - `handshake`: what both sides say first
//! - `listener`: accepts connections

mod frame;
mod handshake;
mod listener;

pub(super) use self::frame::{Incoming, ZmtpError, pong, read, write, write_message};
pub(super) use self::handshake::Kind;
pub(super) use self::listener::{Connection, listen};
