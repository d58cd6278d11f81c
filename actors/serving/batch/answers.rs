//! The file of answers, which a later run continues.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::answer::{Answer, Tally};
use super::error::BatchError;

/// The answers that a file had.
#[derive(Debug, Default)]
pub struct Done {
    /// The ids of their requests.
    pub ids: HashSet<String>,
    /// How they ended.
    pub tally: Tally,
    /// Why the first one failed that did.
    pub first_failure: Option<String>,
}

/// The file that answers are appended to. Other processes cannot open it meanwhile.
#[derive(Debug)]
pub struct Answers {
    file: File,
    path: PathBuf,
}

impl Answers {
    /// Opens the file, or makes it, and returns the answers in it. A last line that was not written to its end is removed.
    ///
    /// # Errors
    /// [`BatchError`] when the file cannot be opened, is in use, or has a line that is no answer to one of the requests.
    pub fn open(path: &Path, requests: &HashSet<String>) -> Result<(Self, Done), BatchError> {
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(BatchError::io("open", path))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => BatchError::InUse(path.to_owned()),
            TryLockError::Error(source) => BatchError::Io { what: "lock", path: path.to_owned(), source },
        })?;
        let (done, end) = answers_in(&file, path, requests)?;
        file.set_len(end).map_err(BatchError::io("write", path))?;
        file.seek(SeekFrom::End(0)).map_err(BatchError::io("write", path))?;
        Ok((Answers { file, path: path.to_owned() }, done))
    }

    /// Appends an answer, and returns the length of its line.
    ///
    /// # Errors
    /// [`BatchError::Io`] when it cannot be written.
    pub fn write(&mut self, answer: &Answer) -> Result<usize, BatchError> {
        let mut line = serde_json::to_vec(answer).expect("texts and numbers can be written as JSON");
        line.push(b'\n');
        // At once, so that at most the last line of a file is not whole.
        self.file.write_all(&line).map_err(BatchError::io("write", &self.path))?;
        Ok(line.len())
    }

    /// Waits until the answers are on the disk.
    ///
    /// # Errors
    /// [`BatchError::Io`] when they cannot be written.
    pub fn sync(&self) -> Result<(), BatchError> {
        self.file.sync_all().map_err(BatchError::io("write", &self.path))
    }
}

/// The answers of a file, and where the last whole line ends.
fn answers_in(file: &File, path: &Path, requests: &HashSet<String>) -> Result<(Done, u64), BatchError> {
    let (mut done, mut end, mut reader) = (Done::default(), 0, BufReader::new(file));
    for number in 1.. {
        let mut line = Vec::new();
        let bytes = reader.read_until(b'\n', &mut line).map_err(BatchError::io("read", path))?;
        if bytes == 0 || line.last() != Some(&b'\n') {
            break;
        }
        let other = |reason: String| BatchError::OtherFile { line: number, path: path.to_owned(), reason };
        let answer: Answer = serde_json::from_slice(&line).map_err(|error| other(format!(": {error}")))?;
        if !requests.contains(&answer.custom_id) {
            return Err(other(format!(": there is no request {:?}", answer.custom_id)));
        }
        done.tally.add(&answer);
        if let Some(failure) = answer.failure() {
            done.first_failure.get_or_insert(failure);
        }
        done.ids.insert(answer.custom_id);
        end += bytes as u64;
    }
    Ok((done, end))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::answer::Response;
    use super::*;

    fn answer(custom_id: &str, status_code: u16) -> Answer {
        let body = json!({ "usage": { "input_tokens": 3 }, "error": { "message": "too long" } });
        let response = Response { status_code, request_id: "req_1".to_owned(), body };
        Answer { id: "batch_req_1".to_owned(), custom_id: custom_id.to_owned(), response: Some(response), error: None }
    }

    #[test]
    fn a_file_is_continued_after_its_last_whole_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("answers.jsonl");
        let requests = ["a", "b", "c"].map(str::to_owned).into();
        let (mut answers, done) = Answers::open(&path, &requests).unwrap();
        assert!(done.ids.is_empty());
        answers.write(&answer("b", 200)).unwrap();
        answers.write(&answer("a", 400)).unwrap();
        let error = Answers::open(&path, &requests).unwrap_err().to_string();
        assert!(error.contains("another process is writing"), "{error}");
        drop(answers);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &whole[..30]].concat()).unwrap();
        let (answers, done) = Answers::open(&path, &requests).unwrap();
        assert_eq!(done.ids, ["a", "b"].map(str::to_owned).into());
        assert_eq!((done.tally.failed, done.first_failure.unwrap().as_str()), (1, "\"a\": too long (status 400)"));
        drop(answers);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn another_file_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("answers.jsonl");
        let requests = HashSet::from(["a".to_owned()]);
        let other = serde_json::to_string(&answer("z", 200)).unwrap();
        for (text, expected) in [("notes\n", "line 1 of"), (&format!("{other}\n"), "there is no request \"z\"")] {
            fs::write(&path, text).unwrap();
            let error = Answers::open(&path, &requests).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("name another file"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
