//! The limit on open files of the process, which also limits its connections.

use super::CliError;
use crate::api::RESERVED_CONNECTIONS;

/// Open files that are not connections: model files, logs, and what the async runtime needs.
const OTHER_FILES: usize = 64;

/// The fewest connections that are worth serving.
const FEWEST_CONNECTIONS: usize = 16;

/// Connections when the system allows more.
const MOST_CONNECTIONS: usize = 16_384;

/// Raises the limit on open files as far as this user may, and returns the number of connections that it allows, at most
/// `wanted`.
///
/// # Errors
/// [`CliError::Failed`] when the limit is too low to serve.
pub fn connections(wanted: Option<usize>) -> Result<usize, CliError> {
    let wanted = wanted.unwrap_or(MOST_CONNECTIONS);
    let Some(files) = raise(wanted + RESERVED_CONNECTIONS + OTHER_FILES) else { return Ok(wanted) };
    let allowed = files.saturating_sub(RESERVED_CONNECTIONS + OTHER_FILES);
    if allowed < FEWEST_CONNECTIONS.min(wanted) {
        return Err(CliError::Failed(format!(
            "this process may open only {files} files, too few to serve; raise the limit with `ulimit -n 4096` before it \
             starts"
        )));
    }
    if allowed < wanted {
        tracing::info!(files, connections = allowed, "the limit on open files limits the connections");
    }
    Ok(wanted.min(allowed))
}

/// The limit on open files, raised to at least `wanted` if this user may. `None`: there is no limit.
#[cfg(unix)]
fn raise(wanted: usize) -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let current = current?;
    let raised = maximum.map_or(wanted as u64, |maximum| maximum.min(wanted as u64));
    let limit = Rlimit { current: Some(raised), maximum };
    let is_raised = raised > current && setrlimit(Resource::Nofile, limit).is_ok();
    usize::try_from(if is_raised { raised } else { current }).ok()
}

#[cfg(not(unix))]
fn raise(_wanted: usize) -> Option<usize> {
    None
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_number_within_the_limit_is_kept() {
        assert_eq!(connections(Some(20)).unwrap(), 20);
    }
}
