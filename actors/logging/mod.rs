//! Writes the log to standard error, as text or as JSON. Logging never blocks a thread ([`writer`]).
//!
//! Notices for people are not part of the log: no level turns them off. In a log of JSON they are lines of JSON too, because
//! programs read it.

mod writer;

use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::EnvFilter;

use crate::config::{Color, Config, LogFormat};
use crate::core::panic_message::panic_message;
use writer::LogWriter;

pub use writer::{flush, lost_lines};

/// The target of notices in a log of JSON.
const NOTICES: &str = "cuelight::notice";

/// Whether the log of this process is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

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
        .with_env_filter(EnvFilter::new(directives(filter, config.log_format)))
        .with_writer(LogWriter::of_process().clone())
        .with_ansi(colored);
    IS_JSON.store(config.log_format == LogFormat::Json, Ordering::Relaxed);
    // Fails only when the process has a subscriber already, which stays in use.
    let _ = match config.log_format {
        LogFormat::Text => subscriber.with_target(false).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    };
    // The default hook writes to standard error and waits for it.
    std::panic::set_hook(Box::new(log_panic));
}

/// The filter for the level or the filters that the user set.
fn directives(filter: &str, format: LogFormat) -> String {
    let mut directives = filter.to_owned();
    // Spans of ractor would put the number of an actor into every line. The decoders of audio warn of each damage in a client's file.
    for (package, level) in [("ractor", "warn"), ("symphonia", "off")] {
        if !filter.contains(package) && !["off", "error"].contains(&filter) {
            directives.push_str(&format!(",{package}={level}"));
        }
    }
    if format == LogFormat::Json {
        directives.push_str(&format!(",{NOTICES}=info"));
    }
    directives
}

/// Whether the log of this process is JSON.
#[must_use]
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Writes a text for people. Never waits and never fails.
pub fn notice(text: &str) {
    match is_json() {
        true => tracing::info!(target: NOTICES, "{text}"),
        false => writer::line(text),
    }
}

/// Writes why a command failed. Never waits and never fails.
pub fn failure(reason: &str) {
    match is_json() {
        true => tracing::error!(target: NOTICES, "{reason}"),
        false => writer::line(&format!("error: {reason}")),
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread = thread.name().unwrap_or("unnamed"), location, "panic: {}", panic_message(panic.payload()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_heard_only_if_the_user_asks_for_it() {
        let text = |filter| directives(filter, LogFormat::Text);
        assert_eq!(text("info"), "info,ractor=warn,symphonia=off");
        assert_eq!(text("cuelight=debug"), "cuelight=debug,ractor=warn,symphonia=off");
        assert_eq!(text("info,symphonia=warn"), "info,symphonia=warn,ractor=warn");
        for unchanged in ["off", "error", "info,ractor=info,symphonia=info"] {
            assert_eq!(text(unchanged), unchanged);
        }
    }

    #[test]
    fn no_level_turns_off_notices() {
        assert_eq!(directives("off", LogFormat::Json), "off,cuelight::notice=info");
    }
}
