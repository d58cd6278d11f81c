//! The directory in which a server keeps the files and batches of its clients.

use crate::api::BatchOptions;
use crate::config::{Config, Origin};
use crate::serving::batch::store::BatchStore;

use super::CliError;

/// Takes the directory for this process, if one is set.
///
/// # Errors
/// [`CliError`] when it cannot be used, or another process uses it.
pub fn batches(config: &Config) -> Result<Option<BatchOptions>, CliError> {
    let Some(directory) = &config.batches else {
        return match config.origin("batches_disk") {
            Origin::Flag(_) => {
                Err(CliError::Usage("--batches-disk needs --batches, the directory that it limits".to_owned()))
            }
            _ => Ok(None),
        };
    };
    let store = BatchStore::open(directory, config.batches_disk.0).map_err(CliError::other)?;
    Ok(Some(BatchOptions { store, parallel: parallel(config) }))
}

/// Twice as many as are computed at once, so that one is ready when another ends; but only half of those that the server accepts.
fn parallel(config: &Config) -> usize {
    let computed = config.max_seqs.get() * config.replicas.get();
    (2 * computed).min((computed + config.max_queued_requests) / 2).max(1)
}
