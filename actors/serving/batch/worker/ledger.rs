//! Which requests of a batch have an answer, and the files of the answers.

use std::collections::HashSet;

use metrics::counter;

use crate::metrics::catalogue::BATCH_REQUESTS;
use crate::serving::batch::answer::{Answer, Tally, UnsentCode};
use crate::serving::batch::answers::Answers;
use crate::serving::batch::error::BatchError;
use crate::serving::batch::store::{BatchRecord, BatchStore};

/// The answers of a batch.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The ids of all requests.
    ids: HashSet<String>,
    /// The ids of those with an answer.
    answered: HashSet<String>,
    pub tally: Tally,
    output: Answers,
    errors: Answers,
}

impl Ledger {
    /// Opens the files of a batch, and counts the answers in them.
    pub fn open(store: &BatchStore, batch: &BatchRecord, ids: HashSet<String>) -> Result<Self, BatchError> {
        let (output, done) = Answers::open(&store.content_path(&batch.output_file), &ids)?;
        let (errors, failed) = Answers::open(&store.content_path(&batch.error_file), &ids)?;
        let tally = done.tally.plus(failed.tally);
        let mut answered = done.ids;
        answered.extend(failed.ids);
        Ok(Ledger { ids, answered, tally, output, errors })
    }

    pub fn has(&self, custom_id: &str) -> bool {
        self.answered.contains(custom_id)
    }

    /// Writes an answer, unless its request has one, and returns the length of its line.
    pub fn write(&mut self, answer: &Answer) -> Result<usize, BatchError> {
        if self.has(&answer.custom_id) {
            return Ok(0);
        }
        let file = if answer.is_success() { &mut self.output } else { &mut self.errors };
        let bytes = file.write(answer)?;
        self.tally.add(answer);
        self.answered.insert(answer.custom_id.clone());
        let outcome = match answer.error.as_ref().map(|error| error.code) {
            Some(UnsentCode::Expired) => "expired",
            Some(UnsentCode::Cancelled) => "cancelled",
            None if answer.is_success() => "succeeded",
            None => "failed",
        };
        counter!(BATCH_REQUESTS, "outcome" => outcome).increment(1);
        Ok(bytes)
    }

    /// Writes for each request without an answer why it has none. Returns the length of the lines.
    pub fn close(&mut self, reason: UnsentCode) -> Result<usize, BatchError> {
        let open: Vec<String> = self.ids.difference(&self.answered).cloned().collect();
        let mut bytes = 0;
        for custom_id in open {
            bytes += self.write(&Answer::unsent(custom_id, reason))?;
        }
        Ok(bytes)
    }

    /// Waits until all answers are on the disk.
    pub fn sync(&self) -> Result<(), BatchError> {
        self.output.sync()?;
        self.errors.sync()
    }
}
