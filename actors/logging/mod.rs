//! Writes the log to standard error, as text or as JSON. Logging never blocks a thread ([`writer`]).

mod writer;

use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing_subscriber::EnvFilter;

use crate::config::{Color, Config, LogFormat};
use crate::core::panic_message::panic_message;
use writer::LogWriter;

pub use writer::{flush, lost_lines, notice};

/// Sets up logging for the process. With `quiet`, only warnings and errors are logged unless the user set a level.
pub fn start(config: &Config, quiet: bool) {
    let is_chosen = *config.origin("log_level") != crate::config::Origin::Default;
    let filter = if quiet && !is_chosen { "warn" } else { &config.log_level.0 };
    let colored = match config.color {
        Color::Auto => std::io::stderr().is_terminal(),
        Color::Always => true,
        Color::Never => false,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(LogWriter::of_process().clone())
        .with_ansi(colored);
    // Fails only when the process has a subscriber already, which stays in use.
    let _ = match config.log_format {
        LogFormat::Text => subscriber.with_target(false).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    };
    // The default hook writes to standard error and waits for it.
    std::panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread = thread.name().unwrap_or("unnamed"), location, "panic: {}", panic_message(panic.payload()));
}
