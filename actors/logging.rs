//! Where log lines go: standard error, as text for people or JSON for machines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Color, Config, LogFormat};

/// Sets up logging for the process. `quiet` holds back everything below a warning unless the person chose a level.
pub fn start(config: &Config, quiet: bool) {
    let chosen = *config.origin("log_level") != crate::config::Origin::Default;
    let filter = if quiet && !chosen { "warn" } else { &config.log_level.0 };
    let colored = match config.color {
        Color::Auto => std::io::stderr().is_terminal(),
        Color::Always => true,
        Color::Never => false,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(colored);
    // Only a second call in one process fails, and the first one's choice is as good.
    let _ = match config.log_format {
        LogFormat::Text => subscriber.with_target(false).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    };
}
