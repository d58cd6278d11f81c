//! Shows how much of a long prompt is computed.

use std::time::Duration;

use indicatif::ProgressBar;

use crate::cli::terminal::Terminal;
use crate::core::request::PromptProgress;

/// A prompt that is computed within this time has no bar.
const PATIENCE: Duration = Duration::from_millis(700);

/// The progress bar of one prompt. It disappears when the answer begins.
pub(super) struct PromptBar {
    terminal: Terminal,
    bar: Option<ProgressBar>,
}

impl PromptBar {
    pub fn new(terminal: Terminal) -> Self {
        PromptBar { terminal, bar: None }
    }

    /// Shows how much is computed, once the prompt turns out to take long.
    pub fn show(&mut self, progress: &PromptProgress) {
        if self.bar.is_none() && (progress.elapsed < PATIENCE || progress.done_tokens == progress.prompt_tokens) {
            return;
        }
        let bar = || self.terminal.count_bar("reading the prompt", progress.prompt_tokens, "tokens");
        self.bar.get_or_insert_with(bar).set_position(progress.done_tokens as u64);
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for PromptBar {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Color;

    #[test]
    fn only_a_prompt_that_takes_long_has_a_bar() {
        let mut bar = PromptBar::new(Terminal::new(Color::Never));
        let progress = |done_tokens, millis| PromptProgress {
            prompt_tokens: 100,
            cached_tokens: 0,
            done_tokens,
            elapsed: Duration::from_millis(millis),
        };
        bar.show(&progress(50, 100));
        assert!(bar.bar.is_none(), "it is fast");
        bar.show(&progress(100, 900));
        assert!(bar.bar.is_none(), "it is complete");
        bar.show(&progress(60, 800));
        bar.show(&progress(100, 900));
        assert_eq!(bar.bar.as_ref().map(ProgressBar::position), Some(100));
        bar.clear();
        assert!(bar.bar.is_none());
    }
}
