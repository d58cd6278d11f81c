//! Talking to a person: notices, progress bars and tables, with colours only where they are wanted.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::CliError;
use crate::config::{ByteSize, Color};
use crate::hub;

/// What the standard streams are connected to.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Whether standard error shows a person colours.
    pub colored: bool,
    /// Whether a person reads standard error.
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

    /// Whether a person types on standard input and reads standard output.
    #[must_use]
    pub fn is_conversation(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Says something that is not the answer.
    pub fn notice(&self, text: &str) {
        // Nobody can be told that nobody can be told.
        let _ = writeln!(io::stderr(), "{}", self.dim(text));
    }

    /// The text in a faint colour.
    #[must_use]
    pub fn dim(&self, text: &str) -> String {
        if self.colored { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A bar for bytes; invisible where nobody looks.
    #[must_use]
    pub fn bytes_bar(&self, message: &str, total: u64) -> ProgressBar {
        let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
        self.bar(message, Some(total), template)
    }

    /// A bar for requests, whose number need not be known; invisible where nobody looks.
    #[must_use]
    pub fn requests_bar(&self, message: &str, total: Option<u64>) -> ProgressBar {
        let known = "{msg} {wide_bar} {pos}/{len} requests {per_sec} {eta}";
        let bar =
            self.bar(message, total, if total.is_some() { known } else { "{msg} {pos} requests {per_sec} {elapsed}" });
        bar.tick();
        bar
    }

    /// A bar for a known number of `things`; invisible where nobody looks.
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

    /// Shows downloads.
    #[must_use]
    pub fn downloads(&self) -> Downloads {
        Downloads { terminal: *self, bar: self.bytes_bar("", 0) }
    }
}

/// A [`hub::Progress`] that a person can see.
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
        // What was there from an earlier attempt is no speed.
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

/// Writes to standard output, with an error (not a panic) when the reader has gone.
///
/// # Errors
/// [`CliError::Output`].
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Which side of a column the text stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings, in columns as wide as they need to be.
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

/// The same as a Markdown table.
#[must_use]
pub fn markdown(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = line(columns.iter().map(|(name, _)| (*name).to_owned()).collect());
    let rule = |align: &Align| if *align == Align::Left { "---" } else { "---:" };
    let rule = line(columns.iter().map(|(_, align)| rule(align).to_owned()).collect());
    let escaped = |row: &Vec<String>| line(row.iter().map(|cell| cell.replace('|', "\\|")).collect());
    format!("{head}{rule}{}", rows.iter().map(escaped).collect::<String>())
}

/// How a command prints one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TableFormat {
    /// A Markdown table.
    Md,
    /// JSON.
    Json,
}

/// Three digits or more: "0.123", "12.3", "1234".
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

/// How long ago something was, in the largest unit: "3 days ago".
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
    fn a_bar_in_somebodys_words_does_not_break_a_markdown_table() {
        let rows = vec![vec!["x|y".to_owned(), "1".to_owned()]];
        let text = markdown(&[("a", Align::Left), ("b", Align::Right)], &rows);
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n");
    }

    #[test]
    fn ages_are_told_in_the_largest_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100 * 86_400);
        let age = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(age(5), "just now");
        assert_eq!(age(60), "1 minute ago");
        assert_eq!(age(3 * 86_400), "3 days ago");
        assert_eq!(ago(now + Duration::from_secs(9), now), "just now");
    }
}
