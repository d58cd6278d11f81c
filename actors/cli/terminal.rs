//! Output for people: notices, progress bars and tables, with colours only on a terminal.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::CliError;
use super::word_wrap::WordWrap;
use crate::config::{ByteSize, Color};
use crate::core::printable::printable;
use crate::{hub, logging};

/// What the standard streams are connected to.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Whether notices have colours.
    pub colored: bool,
    /// Whether standard error is a terminal.
    pub talks: bool,
}

impl Terminal {
    /// The process's own streams.
    #[must_use]
    pub fn new(color: Color) -> Self {
        let talks = io::stderr().is_terminal();
        let colored = match color {
            Color::Auto => talks,
            Color::Always => true,
            Color::Never => false,
        };
        Terminal { colored, talks }
    }

    /// Columns of the terminal on standard output; `None` if that is not a terminal.
    #[must_use]
    pub fn output_columns(&self) -> Option<usize> {
        let out = io::stdout();
        let size = out.is_terminal().then(|| terminal_size::terminal_size_of(&out)).flatten();
        size.map(|(width, _)| usize::from(width.0))
    }

    /// Writes a line to standard error, broken between words if that is a terminal; in a log of JSON, a line of that.
    pub fn notice(&self, text: &str) {
        if logging::is_json() {
            return logging::notice(text);
        }
        // A failure to write to standard error cannot be reported anywhere.
        let _ = writeln!(io::stderr(), "{}", self.dim(&wrapped(&printable(text), error_columns())));
    }

    /// The text in a faint colour.
    #[must_use]
    pub fn dim(&self, text: &str) -> String {
        if self.colored { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A progress bar for bytes; hidden if standard error is not a terminal.
    #[must_use]
    pub fn bytes_bar(&self, message: &str, total: u64) -> ProgressBar {
        let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        self.bar(message, Some(total), template)
    }

    /// A progress bar for requests, with or without a known number; hidden if standard error is not a terminal.
    #[must_use]
    pub fn requests_bar(&self, message: &str, total: Option<u64>) -> ProgressBar {
        let known = "{msg} {wide_bar} {pos}/{len} requests {per_sec} {eta}";
        let bar =
            self.bar(message, total, if total.is_some() { known } else { "{msg} {pos} requests {per_sec} {elapsed}" });
        bar.tick();
        bar
    }

    /// A progress bar for a known number of `things`; hidden if standard error is not a terminal.
    #[must_use]
    pub fn count_bar(&self, message: &str, total: usize, things: &str) -> ProgressBar {
        let bar =
            self.bar(message, Some(total as u64), &format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {things} {{eta}}"));
        bar.tick();
        bar
    }

    fn bar(&self, message: &str, total: Option<u64>, template: &str) -> ProgressBar {
        let target = if self.talks { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target).with_message(message.to_owned());
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    }

    /// A progress display for downloads.
    #[must_use]
    pub fn downloads(&self) -> Downloads {
        Downloads { terminal: *self, bar: self.bytes_bar("", 0) }
    }
}

/// A [`hub::Progress`] that shows a progress bar.
#[derive(Debug, Clone)]
pub struct Downloads {
    terminal: Terminal,
    bar: ProgressBar,
}

impl hub::Progress for Downloads {
    fn start(&self, file: &str, bytes: u64) {
        self.bar.set_message(file.rsplit('/').next().unwrap_or(file).to_owned());
        self.bar.set_length(bytes);
        self.bar.set_position(0);
        // Bytes of an earlier attempt do not count for the speed.
        self.bar.reset_eta();
        if !self.terminal.talks {
            self.terminal.notice(&format!("downloading {file} ({})", ByteSize(bytes)));
        }
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn notice(&self, sentence: &str) {
        self.bar.suspend(|| self.terminal.notice(sentence));
    }
}

/// Writes to standard output; a closed pipe is an error, not a panic. On a terminal, control characters are replaced:
/// they come from files and models.
///
/// # Errors
/// [`CliError::Output`] when standard output cannot be written.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Writes text with styles to standard output. What comes from a model must be [`printable`] already.
///
/// # Errors
/// As [`print()`].
pub fn print_styled(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Columns of the terminal on standard error; `None` if that is not a terminal.
fn error_columns() -> Option<usize> {
    let error = io::stderr();
    let size = error.is_terminal().then(|| terminal_size::terminal_size_of(&error)).flatten();
    size.map(|(width, _)| usize::from(width.0))
}

/// The text with lines of at most this many columns, broken between words.
fn wrapped(text: &str, columns: Option<usize>) -> String {
    let mut wrap = WordWrap::new(columns);
    wrap.push(text);
    wrap.finish()
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// A table with headings, each column as wide as its widest cell.
#[must_use]
pub fn table(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([columns[index].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let headings: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(columns).zip(&widths);
        let padded: Vec<String> = cells
            .map(|((cell, (_, align)), width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    std::iter::once(&headings).chain(rows).map(line).collect()
}

/// The same table in Markdown.
#[must_use]
pub fn markdown(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = line(columns.iter().map(|(name, _)| (*name).to_owned()).collect());
    let rule = |align: &Align| if *align == Align::Left { "---" } else { "---:" };
    let rule = line(columns.iter().map(|(_, align)| rule(align).to_owned()).collect());
    let escaped = |row: &Vec<String>| line(row.iter().map(|cell| cell.replace('|', "\\|")).collect());
    format!("{head}{rule}{}", rows.iter().map(escaped).collect::<String>())
}

/// The format of a table on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TableFormat {
    /// A Markdown table.
    Md,
    /// JSON.
    Json,
}

/// A number with three digits or more: "0.123", "12.3", "1234".
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ if value == 0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// The time since `time` in the largest unit: "3 days ago".
#[must_use]
pub fn ago(time: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(time).unwrap_or(Duration::ZERO).as_secs();
    let units = [("year", 31_536_000), ("month", 2_592_000), ("day", 86_400), ("hour", 3_600), ("minute", 60)];
    match units.into_iter().find(|(_, size)| seconds >= *size) {
        Some((unit, size)) => {
            let count = seconds / size;
            format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
        }
        None => "just now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".to_owned(), "12".to_owned()], vec!["long".to_owned(), "3".to_owned()]];
        assert_eq!(table(&[("X", Align::Left), ("N", Align::Right)], &rows), "X      N\na     12\nlong   3\n");
    }

    #[test]
    fn a_notice_is_broken_between_words() {
        assert_eq!(
            wrapped("memory plan\n  total  1 GiB of memory", Some(16)),
            "memory plan\n  total  1 GiB\nof memory"
        );
        assert_eq!(wrapped("a sentence without a terminal", None), "a sentence without a terminal");
    }

    #[test]
    fn a_vertical_bar_in_a_cell_is_escaped_in_markdown() {
        let rows = vec![vec!["x|y".to_owned(), "1".to_owned()]];
        let text = markdown(&[("a", Align::Left), ("b", Align::Right)], &rows);
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n");
    }

    #[test]
    fn ages_have_one_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100 * 86_400);
        let age = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(age(5), "just now");
        assert_eq!(age(60), "1 minute ago");
        assert_eq!(age(3 * 86_400), "3 days ago");
        assert_eq!(ago(now + Duration::from_secs(9), now), "just now");
    }
}
