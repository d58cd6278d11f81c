//! A program on a pseudo-terminal: the test types like a user and reads what the terminal shows.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Enter.
pub const ENTER: &str = "\r";
/// Ctrl-D on an empty line.
pub const END: &str = "\u{4}";

/// Every wait fails after this time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running program and its terminal.
pub struct Pty {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Characters of the plain text that earlier waits have returned.
    read: usize,
}

impl Pty {
    /// Starts a program on a terminal of this many columns.
    pub fn start(command: Command, columns: u16) -> Self {
        Self::start_on(command, columns, None)
    }

    /// The same with a file as its standard output.
    pub fn start_with_output(command: Command, columns: u16, output: File) -> Self {
        Self::start_on(command, columns, Some(output))
    }

    fn start_on(mut command: Command, columns: u16, output: Option<File>) -> Self {
        let (controller, terminal) = open(columns);
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap());
        match output {
            Some(output) => command.stdout(output),
            None => command.stdout(terminal),
        };
        // SAFETY: between fork and exec only setsid and ioctl run, which are safe to call there.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The parent's copies of the terminal must close, so that reading ends with the program.
        drop(command);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, all) = (controller.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                all.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Pty { child, keyboard: controller, shown, read: 0 }
    }

    /// The number of the program's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Types these keys.
    pub fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows this text, and returns everything from the last wait to its end.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait_for_either(text, text)
    }

    /// The same for the first of two texts.
    #[track_caller]
    pub fn wait_for_either(&mut self, one: &str, other: &str) -> String {
        let end = Instant::now() + TIMEOUT;
        loop {
            let plain = self.plain();
            let new = &plain[self.read..];
            let ends = [one, other].map(|text| new.find(text).map(|start| start + text.len()));
            if let Some(end) = ends.into_iter().flatten().min() {
                let found = new[..end].to_owned();
                self.read += end;
                return found;
            }
            assert!(Instant::now() < end, "neither {one:?} nor {other:?} is shown; since the last wait:\n{new}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the terminal shows anything except line ends.
    #[track_caller]
    pub fn wait_for_output(&mut self) {
        let end = Instant::now() + TIMEOUT;
        while self.plain()[self.read..].trim().is_empty() {
            assert!(Instant::now() < end, "nothing is shown:\n{}", self.plain());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Types a line, and waits until the terminal shows this text.
    #[track_caller]
    pub fn enter(&mut self, line: &str, until: &str) -> String {
        self.send(line);
        self.wait_for(line);
        self.send(ENTER);
        self.wait_for(until)
    }

    /// Waits until the program ends, and returns its exit code.
    #[track_caller]
    pub fn exit_code(&mut self) -> i32 {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap();
            }
            assert!(Instant::now() < end, "it still runs:\n{}", self.plain());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything that the program wrote so far, with escape sequences.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Everything shown so far, without escape sequences and carriage returns.
    pub fn plain(&self) -> String {
        without_escapes(&String::from_utf8_lossy(&self.shown.lock().unwrap()))
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new pseudo-terminal: the side of the test, and the side of the program.
fn open(columns: u16) -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut controller, mut terminal) = (0, 0);
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both numbers are written before the call returns 0, and `size` outlives the call.
    let status = unsafe { libc::openpty(&mut controller, &mut terminal, name, modes, (&raw const size).cast_mut()) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    // The program must not inherit the side of the test.
    // SAFETY: the descriptor is open, and nothing else owns it.
    unsafe { libc::fcntl(controller, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: both descriptors are open, and nothing else owns them.
    unsafe { (File::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal)) }
}

/// The text without control sequences (`ESC [ … letter`) and carriage returns.
fn without_escapes(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\u{1b}' if characters.peek() == Some(&'[') => {
                characters.next();
                while characters.next().is_some_and(|c| !c.is_ascii_alphabetic()) {}
            }
            '\r' | '\u{7}' => {}
            c => plain.push(c),
        }
    }
    plain
}
