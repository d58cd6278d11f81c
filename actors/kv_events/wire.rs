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
use crate::core::prefix_scope::{PrefixScope, ScopeAdapter};
use crate::core::tier::Tier;

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
const DEVICE: &str = "GPU";

/// The medium of the blocks of a tier.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::Peer => "REMOTE",
    }
}

#[derive(Debug, PartialEq, Serialize)]
struct BlockStored {
    #[serde(rename = "type")]
    kind: &'static str,
    block_hashes: Vec<u64>,
    parent_block_hash: Option<u64>,
    token_ids: Vec<TokenId>,
    block_size: usize,
    lora_id: Option<u64>,
    medium: &'static str,
    lora_name: Option<String>,
}

impl Default for BlockStored {
    /// No block, on the device.
    fn default() -> Self {
        BlockStored {
            kind: "BlockStored",
            block_hashes: Vec::new(),
            parent_block_hash: None,
            token_ids: Vec::new(),
            block_size: BLOCK_TOKENS,
            lora_id: None,
            medium: DEVICE,
            lora_name: None,
        }
    }
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

/// Encodes changes as one batch. Blocks that follow each other become one event, and so do copies in one tier, whose tokens are
/// those of the blocks with the same hashes on the device.
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
        match change {
            CacheChange::Stored(block, adapter) => match events.last_mut() {
                Some(Event::Stored(event)) if last == Some(block.before) && !block.has_media => {
                    event.block_hashes.push(block.hash.short());
                    event.token_ids.extend(block.tokens);
                }
                _ => events.push(Event::Stored(stored(block, adapter.as_ref()))),
            },
            CacheChange::Copied(tier, hash) => copied(&mut events, medium(*tier), hash.short()),
            CacheChange::Removed(hash) => removed(&mut events, DEVICE, hash.short()),
            CacheChange::Dropped(tier, hash) => removed(&mut events, medium(*tier), hash.short()),
            CacheChange::Cleared => events.push(Event::Cleared(AllBlocksCleared { kind: "AllBlocksCleared" })),
        }
        last = if let CacheChange::Stored(block, _) = change { Some(block.hash) } else { None };
    }
    events
}

/// Adds the copy of a block in a tier.
fn copied(events: &mut Vec<Event>, medium: &'static str, hash: u64) {
    match events.last_mut() {
        Some(Event::Stored(event)) if event.medium == medium => event.block_hashes.push(hash),
        _ => events.push(Event::Stored(BlockStored { medium, block_hashes: vec![hash], ..BlockStored::default() })),
    }
}

/// Adds the removal of a block.
fn removed(events: &mut Vec<Event>, medium: &'static str, hash: u64) {
    match events.last_mut() {
        Some(Event::Removed(event)) if event.medium == medium => event.block_hashes.push(hash),
        _ => {
            let block_hashes = vec![hash];
            events.push(Event::Removed(BlockRemoved { kind: "BlockRemoved", block_hashes, medium }));
        }
    }
}

/// The event of one block. A first block has no parent, as a reader finds it by the tokens and the name of the adapter. Unless only
/// some prompts with them may use it: those of a tenant, or of an adapter with another scale. Then its parent is one that no reader
/// knows, so that other prompts are not expected to find it. So it is for a block with rows of a media item, which its tokens do not
/// say.
fn stored(block: &BlockContent, adapter: Option<&ScopeAdapter>) -> BlockStored {
    let scope = PrefixScope { salt: None, adapter: adapter.cloned().map(ScopeAdapter::at_own_scale) };
    let is_first = block.before == BlockHash::of_scope(&scope);
    BlockStored {
        block_hashes: vec![block.hash.short()],
        parent_block_hash: match block.has_media {
            true => Some(!block.hash.short()),
            false => (!is_first).then(|| block.before.short()),
        },
        token_ids: block.tokens.to_vec(),
        lora_id: adapter.map(|adapter| adapter.identity.number()),
        lora_name: adapter.map(|adapter| adapter.name.to_string()),
        ..BlockStored::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::prefix_scope::AdapterIdentity;

    fn block(before: BlockHash, first: TokenId) -> BlockContent {
        let tokens = std::array::from_fn(|index| first + index as TokenId);
        BlockContent { hash: before.then(&tokens, None), before, tokens, has_media: false, is_portable: true }
    }

    fn plain(block: BlockContent) -> CacheChange {
        CacheChange::Stored(block, None)
    }

    #[test]
    fn blocks_in_a_row_are_one_event() {
        let start = BlockHash::of_scope(&PrefixScope::default());
        let first = block(start, 0);
        let second = block(first.hash, 100);
        let other = block(start, 200);
        let stored = events(&[first, second, other].map(plain));
        let [Event::Stored(chain), Event::Stored(alone)] = &stored[..] else { panic!("{stored:?}") };
        assert_eq!(chain.block_hashes, [first.hash.short(), second.hash.short()]);
        assert_eq!((chain.parent_block_hash, chain.token_ids.len()), (None, 2 * BLOCK_TOKENS));
        assert_eq!((alone.parent_block_hash, alone.token_ids[0]), (None, 200));
        let later = events(&[CacheChange::Removed(other.hash), CacheChange::Removed(second.hash), plain(second)]);
        let [Event::Removed(removed), Event::Stored(again)] = &later[..] else { panic!("{later:?}") };
        assert_eq!(removed.block_hashes, [other.hash.short(), second.hash.short()]);
        assert_eq!(again.parent_block_hash, Some(first.hash.short()));
    }

    #[test]
    fn copies_in_a_tier_are_events_of_their_own() {
        let first = block(BlockHash::of_scope(&PrefixScope::default()), 0);
        let second = block(first.hash, 100);
        let found = events(&[
            plain(first),
            CacheChange::Copied(Tier::Host, first.hash),
            CacheChange::Copied(Tier::Host, second.hash),
            CacheChange::Copied(Tier::Disk, first.hash),
            plain(second),
            CacheChange::Dropped(Tier::Host, first.hash),
            CacheChange::Removed(second.hash),
        ]);
        let of = |event: &Event| match event {
            Event::Stored(event) => (true, event.medium, event.block_hashes.len(), event.token_ids.len()),
            Event::Removed(event) => (false, event.medium, event.block_hashes.len(), 0),
            Event::Cleared(_) => panic!("nothing was cleared"),
        };
        let expected = [
            (true, "GPU", 1, BLOCK_TOKENS),
            (true, "CPU", 2, 0),
            (true, "DISK", 1, 0),
            (true, "GPU", 1, BLOCK_TOKENS),
            (false, "CPU", 1, 0),
            (false, "GPU", 1, 0),
        ];
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn blocks_of_a_tenant_have_an_unknown_parent() {
        let scope = PrefixScope { salt: Some("tenant".into()), adapter: None };
        let first = block(BlockHash::of_scope(&scope), 0);
        assert_eq!(stored(&first, None).parent_block_hash, Some(first.before.short()));
    }

    fn adapter() -> ScopeAdapter {
        ScopeAdapter { identity: AdapterIdentity::Process(6), scale_bits: 0, name: "tuned".into() }.at_own_scale()
    }

    #[test]
    fn blocks_of_an_adapter_have_its_name_and_number() {
        let of = |adapter: &ScopeAdapter, salt: Option<&str>| {
            let scope = PrefixScope { salt: salt.map(Into::into), adapter: Some(adapter.clone()) };
            let first = block(BlockHash::of_scope(&scope), 0);
            let second = block(first.hash, 100);
            let found = events(&[first, second].map(|block| CacheChange::Stored(block, Some(adapter.clone()))));
            let [Event::Stored(event)] = &found[..] else { panic!("{found:?}") };
            assert_eq!(
                (event.lora_id, event.lora_name.as_deref(), event.block_hashes.len()),
                (Some(7), Some("tuned"), 2)
            );
            event.parent_block_hash
        };
        assert_eq!(of(&adapter(), None), None);
        assert!(of(&adapter(), Some("tenant")).is_some());
        assert!(of(&ScopeAdapter { scale_bits: 0.5_f32.to_bits(), ..adapter() }, None).is_some());
    }

    /// The bytes that msgspec writes for a block, with and without an adapter. No field is ever left out.
    #[test]
    fn every_field_of_a_block_is_there() {
        let scope = PrefixScope { salt: None, adapter: Some(adapter()) };
        let tuned = block(BlockHash::of_scope(&scope), 0);
        let base = block(BlockHash::of_scope(&PrefixScope::default()), 0);
        let tokens: Vec<u8> = std::iter::once(0xDC).chain([0, 16]).chain(0..16).collect();
        for (change, id, name) in [
            (CacheChange::Stored(tuned, Some(adapter())), &[7][..], &b"\xA5tuned"[..]),
            (plain(base), &[0xC0], &[0xC0]),
        ] {
            let CacheChange::Stored(content, _) = &change else { unreachable!() };
            let hash = [&[0x91, 0xCF][..], &content.hash.short().to_be_bytes()].concat();
            let fields: [(&[u8], &[u8]); 8] = [
                (b"\xA4type", b"\xABBlockStored"),
                (b"\xACblock_hashes", &hash),
                (b"\xB1parent_block_hash", &[0xC0]),
                (b"\xA9token_ids", &tokens),
                (b"\xAAblock_size", &[16]),
                (b"\xA7lora_id", id),
                (b"\xA6medium", b"\xA3GPU"),
                (b"\xA9lora_name", name),
            ];
            let encoded = |format| encode(std::slice::from_ref(&change), 0, UNIX_EPOCH, format);
            let batch = |event: Vec<u8>| [&[0x93, 0xCB, 0, 0, 0, 0, 0, 0, 0, 0, 0x91], &event[..], &[0]].concat();
            let values = fields.iter().flat_map(|(_, value)| value.to_vec());
            let named = fields.iter().flat_map(|(name, value)| [*name, *value].concat());
            assert_eq!(encoded(EventFormat::Array), batch(std::iter::once(0x98).chain(values).collect()));
            assert_eq!(encoded(EventFormat::Map), batch(std::iter::once(0x88).chain(named).collect()));
        }
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
