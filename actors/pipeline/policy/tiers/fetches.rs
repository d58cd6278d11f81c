//! The reads from lower tiers that are under way, and those that wait for them.
//!
//! Reads wait only for others from the same place, so that a server that is silent delays no load from anywhere else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::core::cached_unit::UnitKind;
use crate::core::kv_transfer::PeerAddress;
use crate::core::request::RequestId;
use crate::core::tier::{FetchId, Tier};

/// Maximum number of reads from the disk, or from one server, that are under way.
const MAX_FETCHES: usize = 4;

/// Where units are read: a tier, and the server for units of other servers.
pub(in crate::pipeline::policy) type Lane = (Tier, Option<Arc<PeerAddress>>);

/// A read that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pipeline::policy) struct Fetch {
    /// The sequence that waits for it.
    pub id: RequestId,
    pub lane: Lane,
    /// What is read: units of one kind, and their bytes together.
    pub kind: UnitKind,
    pub bytes: u64,
    pub time_limit: Duration,
}

/// The reads of all sequences.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct Fetches {
    under_way: HashMap<FetchId, Fetch>,
    /// Sequences whose next read waits for others.
    queued: HashMap<Lane, VecDeque<RequestId>>,
    next: u64,
}

impl Fetches {
    /// Whether another read may start. Host memory is read at once, so nothing waits there.
    pub fn accept(&self, lane: &Lane) -> bool {
        lane.0 == Tier::Host || self.count(lane) < MAX_FETCHES
    }

    fn count(&self, lane: &Lane) -> usize {
        self.under_way.values().filter(|fetch| fetch.lane == *lane).count()
    }

    /// Starts a read.
    pub fn start(&mut self, fetch: Fetch) -> FetchId {
        let id = FetchId(self.next);
        self.next += 1;
        self.under_way.insert(id, fetch);
        id
    }

    /// A read has ended. `None` when it was given up.
    pub fn end(&mut self, fetch: FetchId) -> Option<Fetch> {
        self.under_way.remove(&fetch)
    }

    /// Lets a sequence wait for other reads.
    pub fn queue(&mut self, lane: Lane, id: RequestId) {
        self.queued.entry(lane).or_default().push_back(id);
    }

    /// The next sequence that may read.
    pub fn next_queued(&mut self, lane: &Lane) -> Option<RequestId> {
        if !self.accept(lane) {
            return None;
        }
        let queue = self.queued.get_mut(lane)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queued.remove(lane);
        }
        next
    }

    /// The sequences that waited are gone, or compute their tokens.
    pub fn clear(&mut self) {
        self.under_way.clear();
        self.queued.clear();
    }

    /// Panics when too many reads are under way, or one waits for none.
    pub fn check(&self) {
        let lanes = self.under_way.values().map(|fetch| &fetch.lane).filter(|(tier, _)| *tier != Tier::Host);
        lanes.for_each(|lane| assert!(self.count(lane) <= MAX_FETCHES, "too many reads are under way: {lane:?}"));
        self.queued.keys().for_each(|lane| assert!(!self.accept(lane), "a read waits for none: {lane:?}"));
    }
}
