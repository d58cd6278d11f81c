//! Repeats a download that broke off. Each attempt continues where the previous one stopped.

use std::fmt::Display;
use std::time::Duration;

use super::error::HubError;
use super::progress::Progress;

/// Maximum number of attempts per file.
const ATTEMPTS: u32 = 5;

/// A download that receives nothing for this time counts as broken.
pub(super) const STALL: Duration = Duration::from_secs(60);

/// Attempts to download a file until it succeeds, or an error is not transient, or there were enough attempts.
pub(super) fn repeated<T, E: Display>(
    file: &str,
    progress: &impl Progress,
    is_transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<Result<T, E>, HubError>,
) -> Result<Result<T, E>, HubError> {
    let mut count = 1;
    loop {
        match attempt()? {
            Err(error) if count < ATTEMPTS && is_transient(&error) => {
                progress.notice(&format!("{file}: {error}; trying again ({count} of {})", ATTEMPTS - 1));
                std::thread::sleep(Duration::from_millis(200 << count));
                count += 1;
            }
            result => return Ok(result),
        }
    }
}

/// Whether a retry of a request may help: the network failed, or the server was busy.
pub(super) fn is_transient(error: &reqwest::Error) -> bool {
    let is_ours = error.is_builder() || error.is_redirect();
    !is_ours && error.status().is_none_or(|status| status == 429 || status.is_server_error())
}
