//! What is known of a file of a client.

use serde::{Deserialize, Serialize};

use super::catalogue::Record;
use crate::core::shared_limit::Client;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// It has requests, and comes from the client.
    Batch,
    /// It has answers.
    BatchOutput,
}

impl Purpose {
    /// Its name in the protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Batch => "batch",
            Purpose::BatchOutput => "batch_output",
        }
    }
}

/// A file whose content is on the disk.
#[derive(Debug)]
pub struct Content {
    /// The id of the file.
    pub id: String,
    /// Its size.
    pub bytes: u64,
}

/// A file of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its id.
    pub id: String,
    /// The only client that finds it.
    pub owner: Client,
    /// Its place in lists.
    pub order: u64,
    /// The name that the client has given it.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its size.
    pub bytes: u64,
    /// When it was made, in seconds of Unix time.
    pub created_at: u64,
    /// When it is deleted.
    pub expires_at: u64,
}

impl Record for FileRecord {
    fn id(&self) -> &str {
        &self.id
    }

    fn order(&self) -> u64 {
        self.order
    }
}
