//! The bytes of a batch of events, as vLLM encodes them (`vllm/distributed/kv_events.py`): MessagePack of
//! `[seconds since 1970, events, replica]`.
//!
//! vLLM had events as arrays, `["BlockStored", hashes, ...]`, and has them as maps, `{"type": "BlockStored", ...}`. Readers exist
//! that take only one of them.

use std::time::{SystemTime, UNIX_EPOCH};

use cuelight_engine::engine::{BLOCK_TOKENS, TokenId};
use serde::Serialize;

use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::cache_change::CacheChange;
use crate::core::prefix_scope::PrefixScope;

/// How the fields of an event are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventFormat {
    /// By name.
    #[default]
    Map,
    /// By position.
    Array,
}

/// The medium of blocks on the device that computes.
const MEDIUM: &str = "GPU";

#[derive(Debug, PartialEq, Serialize)]
struct BlockStored {
    #[serde(rename = "type")]
    kind: &'static str,
    block_hashes: Vec<u64>,
    parent_block_hash: Option<u64>,
    token_ids: Vec<TokenId>,
    block_size: usize,
    lora_id: Option<u32>,
    medium: &'static str,
    lora_name: Option<&'static str>,
}

#[derive(Debug, PartialEq, Serialize)]
struct BlockRemoved {
    #[serde(rename = "type")]
    kind: &'static str,
    block_hashes: Vec<u64>,
    medium: &'static str,
}

#[derive(Debug, PartialEq, Serialize)]
struct AllBlocksCleared {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Event {
    Stored(BlockStored),
    Removed(BlockRemoved),
    Cleared(AllBlocksCleared),
}

/// Encodes changes as one batch. Blocks that follow each other become one event.
pub(super) fn encode(changes: &[CacheChange], replica: usize, at: SystemTime, format: EventFormat) -> Vec<u8> {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let batch = (seconds, events(changes), replica);
    let encoded = match format {
        EventFormat::Map => rmp_serde::to_vec_named(&batch),
        EventFormat::Array => rmp_serde::to_vec(&batch),
    };
    // Numbers, strings and sequences of known length always have an encoding.
    encoded.unwrap_or_default()
}

fn events(changes: &[CacheChange]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut last = None;
    for change in changes {
        match (change, events.last_mut()) {
            (CacheChange::Stored(block), Some(Event::Stored(event))) if last == Some(block.before) => {
                event.block_hashes.push(block.hash.short());
                event.token_ids.extend(block.tokens);
            }
            (CacheChange::Stored(block), _) => events.push(Event::Stored(stored(block))),
            (CacheChange::Removed(hash), Some(Event::Removed(event))) => event.block_hashes.push(hash.short()),
            (CacheChange::Removed(hash), _) => {
                let block_hashes = vec![hash.short()];
                events.push(Event::Removed(BlockRemoved { kind: "BlockRemoved", block_hashes, medium: MEDIUM }));
            }
            (CacheChange::Cleared, _) => events.push(Event::Cleared(AllBlocksCleared { kind: "AllBlocksCleared" })),
        }
        last = match change {
            CacheChange::Stored(block) => Some(block.hash),
            CacheChange::Removed(_) | CacheChange::Cleared => None,
        };
    }
    events
}

/// The event of one block. A first block has no parent, unless only some prompts may use it: those of a tenant or an adapter.
/// Then its parent is one that no reader knows, so that other prompts are not expected to find it.
fn stored(block: &BlockContent) -> BlockStored {
    let is_first = block.before == BlockHash::of_scope(&PrefixScope::default());
    BlockStored {
        kind: "BlockStored",
        block_hashes: vec![block.hash.short()],
        parent_block_hash: (!is_first).then(|| block.before.short()),
        token_ids: block.tokens.to_vec(),
        block_size: BLOCK_TOKENS,
        lora_id: None,
        medium: MEDIUM,
        lora_name: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn block(before: BlockHash, first: TokenId) -> BlockContent {
        let tokens = std::array::from_fn(|index| first + index as TokenId);
        BlockContent { hash: before.then(&tokens), before, tokens, is_portable: true }
    }

    #[test]
    fn blocks_in_a_row_are_one_event() {
        let start = BlockHash::of_scope(&PrefixScope::default());
        let first = block(start, 0);
        let second = block(first.hash, 100);
        let other = block(start, 200);
        let stored = events(&[first, second, other].map(CacheChange::Stored));
        let [Event::Stored(chain), Event::Stored(alone)] = &stored[..] else { panic!("{stored:?}") };
        assert_eq!(chain.block_hashes, [first.hash.short(), second.hash.short()]);
        assert_eq!((chain.parent_block_hash, chain.token_ids.len()), (None, 2 * BLOCK_TOKENS));
        assert_eq!((alone.parent_block_hash, alone.token_ids[0]), (None, 200));
        let later =
            events(&[CacheChange::Removed(other.hash), CacheChange::Removed(second.hash), CacheChange::Stored(second)]);
        let [Event::Removed(removed), Event::Stored(again)] = &later[..] else { panic!("{later:?}") };
        assert_eq!(removed.block_hashes, [other.hash.short(), second.hash.short()]);
        assert_eq!(again.parent_block_hash, Some(first.hash.short()));
    }

    #[test]
    fn blocks_of_a_tenant_have_an_unknown_parent() {
        let scope = PrefixScope { salt: Some("tenant".into()), adapter: None };
        let first = block(BlockHash::of_scope(&scope), 0);
        assert_eq!(stored(&first).parent_block_hash, Some(first.before.short()));
    }

    /// The bytes that msgspec writes for the same batches in Python.
    #[test]
    fn the_bytes_are_those_of_other_encoders() {
        let at = UNIX_EPOCH + Duration::from_millis(1500);
        let batch = |format| encode(&[CacheChange::Cleared], 2, at, format);
        let time = [0xCB, 0x3F, 0xF8, 0, 0, 0, 0, 0, 0];
        let array = [&[0x93], &time[..], &[0x91, 0x91, 0xB0], b"AllBlocksCleared", &[2]].concat();
        assert_eq!(batch(EventFormat::Array), array);
        let map = [&[0x93], &time[..], &[0x91, 0x81, 0xA4], b"type", &[0xB0], b"AllBlocksCleared", &[2]].concat();
        assert_eq!(batch(EventFormat::Map), map);
    }
}
