//! Turning the terminal's echo off while an answer is printed.

/// Typed keys are not shown until this is dropped. They stay in the terminal's buffer, and the next prompt reads them.
#[derive(Debug)]
pub struct EchoOff {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl EchoOff {
    /// Turns echo off on standard input; does nothing if that is not a terminal.
    #[must_use]
    pub fn new() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ECHO);
            // A terminal that refuses shows the keys, as before.
            let _ = tcsetattr(&stdin, OptionalActions::Now, &quiet);
        }
        EchoOff { before }
    }
}

#[cfg(unix)]
impl Drop for EchoOff {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        if let Some(before) = &self.before {
            // The terminal may be closed by now.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(not(unix))]
impl EchoOff {
    /// Does nothing: the Windows console echoes only what a program reads.
    #[must_use]
    pub fn new() -> Self {
        EchoOff {}
    }
}
