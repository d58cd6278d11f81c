//! What is known of a batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::catalogue::Record;
use crate::core::shared_limit::Client;
use crate::serving::batch::answer::Tally;

/// The protocol by which a batch was made. Only its routes show the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// Where a batch is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its file is checked.
    Validating,
    /// A line of its file was wrong.
    Failed,
    /// Its requests are answered.
    InProgress,
    /// Its files of answers are completed.
    Finalizing,
    /// Every request was sent.
    Completed,
    /// Its time was over before.
    Expired,
    /// It was cancelled, and its files of answers are completed.
    Cancelling,
    /// It was cancelled.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 8] = [
        Status::Validating,
        Status::Failed,
        Status::InProgress,
        Status::Finalizing,
        Status::Completed,
        Status::Expired,
        Status::Cancelling,
        Status::Cancelled,
    ];

    /// Its name in OpenAI's protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Status::Validating => "validating",
            Status::Failed => "failed",
            Status::InProgress => "in_progress",
            Status::Finalizing => "finalizing",
            Status::Completed => "completed",
            Status::Expired => "expired",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Status::Failed | Status::Completed | Status::Expired | Status::Cancelled)
    }
}

/// Why a batch has failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    /// The reason for programs.
    pub code: String,
    /// The reason in one sentence.
    pub message: String,
    /// The number of the line, from 1.
    pub line: Option<usize>,
    /// The field.
    pub param: Option<String>,
}

/// A batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Its id.
    pub id: String,
    /// The only client that finds it.
    pub owner: Client,
    /// Its place in lists.
    pub order: u64,
    /// The protocol by which it was made.
    pub protocol: Protocol,
    /// The route of its requests.
    pub endpoint: String,
    /// The file with its requests.
    pub input_file: String,
    /// The file for the answers of requests that succeed.
    pub output_file: String,
    /// The file for the other answers.
    pub error_file: String,
    /// What the client wants to be told of it.
    pub metadata: Option<Value>,
    /// When its requests are no longer answered, in seconds of Unix time.
    pub expires_at: u64,
    /// Where it is on its way.
    pub status: Status,
    /// When it came there, and to the places before.
    pub entered: BTreeMap<Status, u64>,
    /// Its requests; 0 until they are counted.
    pub total: usize,
    /// How those with an answer ended.
    pub tally: Tally,
    /// Why it has failed.
    pub problem: Option<Problem>,
}

impl BatchRecord {
    /// When it was made.
    #[must_use]
    pub fn created_at(&self) -> u64 {
        self.entered.get(&Status::Validating).copied().unwrap_or_default()
    }

    /// When it came to its end.
    #[must_use]
    pub fn ended_at(&self) -> Option<u64> {
        self.status.is_end().then(|| self.entered.get(&self.status).copied()).flatten()
    }

    /// Enters a status, unless the batch is at its end or is being cancelled, which leads only to its end.
    pub fn enter(&mut self, status: Status, now: u64) {
        if self.status.is_end() || self.status == Status::Cancelling && !status.is_end() {
            return;
        }
        self.status = status;
        self.entered.insert(status, now);
    }
}

impl Record for BatchRecord {
    fn id(&self) -> &str {
        &self.id
    }

    fn order(&self) -> u64 {
        self.order
    }
}
