//! The responses that are kept for their clients, in memory of a limited size.
//!
//! When a response does not fit, the ones that were not used for the longest time are dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use metrics::gauge;

use crate::core::shared_limit::Client;
use crate::metrics::catalogue::RESPONSE_STORE;

/// Bytes of a response without its texts: its slots in the maps, and its allocations.
const RESPONSE_BYTES: usize = 512;

/// Bytes of an item without its texts.
const ITEM_BYTES: usize = size_of::<InputItem>() + 64;

/// A complete response, with the input of its request. Reading it copies no text.
#[derive(Debug)]
pub(super) struct StoredResponse {
    pub id: String,
    /// Only this client finds it.
    pub owner: Client,
    /// The response that it continues.
    pub previous: Option<String>,
    /// The response object as JSON, without its field `output`.
    pub object: Bytes,
    /// The items of the request's input, without those of earlier responses.
    pub input: Vec<InputItem>,
    /// The items of the output as JSON.
    pub output: Vec<Bytes>,
}

/// An item of an input.
#[derive(Debug, Clone)]
pub(super) struct InputItem {
    pub id: String,
    /// The item as JSON.
    pub json: Bytes,
}

impl InputItem {
    /// The memory in bytes.
    pub fn bytes(&self) -> usize {
        self.id.len() + self.json.len() + ITEM_BYTES
    }
}

impl StoredResponse {
    /// The memory in bytes.
    fn bytes(&self) -> usize {
        let input: usize = self.input.iter().map(InputItem::bytes).sum();
        let output: usize = self.output.iter().map(|item| item.len() + ITEM_BYTES).sum();
        let ids = 2 * self.id.len() + self.previous.as_ref().map_or(0, String::len);
        RESPONSE_BYTES + ids + self.object.len() + input + output
    }
}

/// The kept responses of all clients.
#[derive(Debug)]
pub(in crate::api) struct ResponseStore {
    /// Most bytes; 0: nothing is kept.
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: usize,
    entries: HashMap<Arc<str>, Entry>,
    /// The ids by the number of their last use.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    response: Arc<StoredResponse>,
    bytes: usize,
    last_use: u64,
}

impl ResponseStore {
    /// A store of at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        gauge!(RESPONSE_STORE).set(0.0);
        Arc::new(ResponseStore { limit, kept: Mutex::default() })
    }

    /// Whether responses are kept at all.
    pub fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Keeps a response. Returns false for one that is larger than the whole store.
    pub(super) fn insert(&self, response: StoredResponse) -> bool {
        let bytes = response.bytes();
        if bytes > self.limit {
            return false;
        }
        let mut kept = self.kept();
        kept.remove(&response.id);
        while kept.bytes + bytes > self.limit && kept.remove_oldest() {}
        kept.insert(response, bytes);
        gauge!(RESPONSE_STORE).set(kept.bytes as f64);
        true
    }

    /// The response of this client with this id. It counts as used.
    pub(super) fn get(&self, owner: &Client, id: &str) -> Option<Arc<StoredResponse>> {
        self.kept().get(owner, id)
    }

    /// Drops the response of this client with this id. Returns whether there was one.
    pub(super) fn remove(&self, owner: &Client, id: &str) -> bool {
        let mut kept = self.kept();
        let is_found = kept.get(owner, id).is_some() && kept.remove(id);
        gauge!(RESPONSE_STORE).set(kept.bytes as f64);
        is_found
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn insert(&mut self, response: StoredResponse, bytes: usize) {
        let id: Arc<str> = response.id.as_str().into();
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, id.clone());
        self.entries.insert(id, Entry { response: Arc::new(response), bytes, last_use: self.uses });
    }

    fn get(&mut self, owner: &Client, id: &str) -> Option<Arc<StoredResponse>> {
        let entry = self.entries.get_mut(id).filter(|entry| entry.response.owner == *owner)?;
        self.uses += 1;
        if let Some(id) = self.by_use.remove(&entry.last_use) {
            self.by_use.insert(self.uses, id);
        }
        entry.last_use = self.uses;
        Some(entry.response.clone())
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(entry) = self.entries.remove(id) else { return false };
        self.by_use.remove(&entry.last_use);
        self.bytes -= entry.bytes;
        true
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.by_use.first_key_value().map(|(_, id)| id.clone());
        oldest.is_some_and(|id| self.remove(&id))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn response(id: &str, text_bytes: usize) -> StoredResponse {
        StoredResponse {
            id: id.to_owned(),
            owner: None,
            previous: None,
            object: vec![b'a'; text_bytes].into(),
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// A store with space for `count` responses like `response("a", 1000)`.
    fn store_of(count: usize) -> Arc<ResponseStore> {
        ResponseStore::new(count * response("a", 1000).bytes())
    }

    /// Which of these ids are kept. Does not count as a use.
    fn kept(store: &ResponseStore, ids: &str) -> String {
        ids.chars().filter(|id| store.kept().entries.contains_key(id.to_string().as_str())).collect()
    }

    fn bytes_and_count(store: &ResponseStore) -> (usize, usize) {
        let kept = store.kept();
        assert_eq!(kept.by_use.len(), kept.entries.len());
        (kept.bytes, kept.entries.len())
    }

    #[test]
    fn the_least_recently_used_make_way_by_their_size() {
        let store = store_of(3);
        for id in ["a", "b", "c"] {
            assert!(store.insert(response(id, 1000)));
        }
        assert_eq!(kept(&store, "abc"), "abc");
        store.get(&None, "a").unwrap();
        assert!(store.insert(response("d", 1000)));
        assert_eq!(kept(&store, "abcd"), "acd");
        // A larger one takes the space of two, whichever were used last.
        assert!(store.insert(response("e", 1001)));
        assert_eq!(kept(&store, "abcde"), "de");
        let held: usize = ["d", "e"].map(|id| store.get(&None, id).unwrap().bytes()).iter().sum();
        assert_eq!(bytes_and_count(&store), (held, 2));
    }

    #[test]
    fn what_is_larger_than_the_store_is_not_kept_and_drops_nothing() {
        let store = store_of(1);
        assert!(store.insert(response("a", 1000)) && !store.insert(response("b", 1001)));
        assert_eq!(kept(&store, "ab"), "a");
        let off = ResponseStore::new(0);
        assert!(!off.is_on() && !off.insert(response("a", 0)));
    }

    #[test]
    fn a_response_is_found_and_removed_by_its_owner_only() {
        let store = store_of(1);
        let (owner, other) = (Some("owner".into()), Some("other".into()));
        store.insert(StoredResponse { owner: owner.clone(), ..response("a", 0) });
        assert!(store.get(&other, "a").is_none() && store.get(&None, "a").is_none());
        assert!(!store.remove(&other, "a"));
        assert!(store.get(&owner, "a").is_some() && store.remove(&owner, "a") && !store.remove(&owner, "a"));
        assert_eq!(bytes_and_count(&store), (0, 0));
    }

    #[test]
    fn items_weigh_more_than_their_texts() {
        let item = || InputItem { id: "i".to_owned(), json: Bytes::from_static(b"{}") };
        let with = StoredResponse { input: vec![item(), item()], output: vec![Bytes::new()], ..response("a", 0) };
        assert!(with.bytes() >= response("a", 0).bytes() + 3 * ITEM_BYTES + 6);
    }
}
