//! Records of one kind: each is a JSON file in a directory, and all are in memory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The end of the name of a record's file.
const ENDING: &str = "json";

/// A record that a [`Catalogue`] keeps.
pub(super) trait Record: Clone + Serialize + DeserializeOwned {
    /// Its id, which is the name of its file.
    fn id(&self) -> &str;
    /// Its place in lists: later records have larger ones.
    fn order(&self) -> u64;
}

/// The records of a directory.
#[derive(Debug)]
pub(super) struct Catalogue<T> {
    directory: PathBuf,
    records: Mutex<HashMap<String, Arc<T>>>,
    /// Held while a file is written, so that the file has the latest change.
    writing: Mutex<()>,
}

/// Whether a text may be an id. Only then may it be a part of a path.
pub(super) fn is_id(text: &str) -> bool {
    let is_of_ids = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(is_of_ids)
}

impl<T: Record> Catalogue<T> {
    /// Reads the records of a directory. A file that is no record is left as it is.
    ///
    /// # Errors
    /// When the directory or a file cannot be read.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let mut records = HashMap::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != ENDING) {
                continue;
            }
            match serde_json::from_slice::<T>(&fs::read(&path)?) {
                Ok(record) if is_id(record.id()) && path.file_stem().is_some_and(|stem| stem == record.id()) => {
                    records.insert(record.id().to_owned(), Arc::new(record));
                }
                _ => tracing::warn!(path = %path.display(), "a file in the directory of batches is no record"),
            }
        }
        Ok(Catalogue { directory: directory.to_owned(), records: Mutex::new(records), writing: Mutex::default() })
    }

    pub fn get(&self, id: &str) -> Option<Arc<T>> {
        self.records().get(id).cloned()
    }

    /// All records, the oldest first.
    pub fn all(&self) -> Vec<Arc<T>> {
        let mut all: Vec<Arc<T>> = self.records().values().cloned().collect();
        all.sort_unstable_by_key(|record| record.order());
        all
    }

    /// Keeps a record.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn insert(&self, record: T) -> io::Result<Arc<T>> {
        let _writing = lock(&self.writing);
        let record = Arc::new(record);
        self.save(&record)?;
        self.records().insert(record.id().to_owned(), record.clone());
        Ok(record)
    }

    /// Changes a record in memory only. `None`: there is none.
    pub fn note(&self, id: &str, change: impl FnOnce(&mut T)) -> Option<Arc<T>> {
        let mut records = self.records();
        let record = records.get_mut(id)?;
        change(Arc::make_mut(record));
        Some(record.clone())
    }

    /// Changes a record. `None`: there is none.
    ///
    /// # Errors
    /// When its file cannot be written. The change is in memory then.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut T)) -> io::Result<Option<Arc<T>>> {
        let _writing = lock(&self.writing);
        let Some(record) = self.note(id, change) else { return Ok(None) };
        self.save(&record)?;
        Ok(Some(record))
    }

    /// Drops a record. Returns whether there was one.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub fn remove(&self, id: &str) -> io::Result<bool> {
        let _writing = lock(&self.writing);
        let is_found = self.records().remove(id).is_some();
        if is_found {
            fs::remove_file(self.path(id))?;
        }
        Ok(is_found)
    }

    fn save(&self, record: &T) -> io::Result<()> {
        // Records have texts and numbers only.
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        write_whole(&self.path(record.id()), &text)
    }

    /// The file of a record of this catalogue.
    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.{ENDING}"))
    }

    fn records(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        lock(&self.records)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file so that it has the old or the new content after a crash, and never a part.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let mut file = File::create(&unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    sync_directory(path)
}

/// Waits until the name of a file is on the disk.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if cfg!(unix) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::core::shared_limit::Client;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Note {
        id: String,
        owner: Client,
        order: u64,
        text: String,
    }

    impl Record for Note {
        fn id(&self) -> &str {
            &self.id
        }

        fn order(&self) -> u64 {
            self.order
        }
    }

    fn note(id: &str, order: u64) -> Note {
        Note { id: id.to_owned(), owner: Some("key".into()), order, text: String::new() }
    }

    #[test]
    fn records_are_found_again_in_their_order() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Catalogue::<Note>::open(directory.path()).unwrap();
        let catalogue = open();
        catalogue.insert(note("b", 1)).unwrap();
        catalogue.insert(note("a", 2)).unwrap();
        catalogue.insert(note("c", 3)).unwrap();
        catalogue.change("a", |note| note.text.push_str("saved")).unwrap().unwrap();
        catalogue.note("a", |note| note.text.push_str(" and noted")).unwrap();
        assert_eq!(catalogue.get("a").unwrap().text, "saved and noted");
        assert!(catalogue.remove("c").unwrap() && !catalogue.remove("c").unwrap());
        let again = open();
        let ids: Vec<String> = again.all().iter().map(|note| note.id.clone()).collect();
        assert_eq!((ids, again.get("a").unwrap().text.as_str()), (vec!["b".to_owned(), "a".to_owned()], "saved"));
        assert_eq!(again.get("a").unwrap().owner.as_deref(), Some("key"));
    }

    #[test]
    fn a_file_that_is_no_record_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("a.json", "{\"id\": ");
        write("b.json", &serde_json::to_string(&note("other", 1)).unwrap());
        write("c.tmp", &serde_json::to_string(&note("c", 1)).unwrap());
        assert!(Catalogue::<Note>::open(directory.path()).unwrap().all().is_empty());
    }

    #[test]
    fn an_id_is_never_a_path() {
        assert!(is_id("file-0a") && is_id("batch_0a"));
        for other in ["", ".", "..", "../a", "a/b", "a\\b", "a.json", "ä", &"a".repeat(65)] {
            assert!(!is_id(other), "{other}");
        }
    }
}
