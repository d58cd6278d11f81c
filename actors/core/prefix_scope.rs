//! What decides, besides its tokens, whether two prompts may share cached keys and values.

use std::sync::Arc;

use cuelight_engine::engine::{Adapter, AdapterUse};

/// Prompts share cached prefixes only within one scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PrefixScope {
    /// The salt of the tenant.
    pub salt: Option<Arc<str>>,
    /// The adapter that changes the model.
    pub adapter: Option<ScopeAdapter>,
}

/// An adapter, as far as it decides which prompts may share keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScopeAdapter {
    /// What distinguishes it from other adapters.
    pub identity: AdapterIdentity,
    /// The bits of its scale ([`AdapterUse::key`]).
    pub scale_bits: u32,
    /// Its name.
    pub name: Arc<str>,
}

/// What distinguishes an adapter from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdapterIdentity {
    /// The digest of what it contains, which is the same in every process.
    Content([u8; 32]),
    /// Its number in this process ([`Adapter::id`](cuelight_engine::engine::Adapter::id)).
    Process(u64),
}

impl AdapterIdentity {
    /// A number for readers of KV events. From 1, because some take 0 for no adapter.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            AdapterIdentity::Content([a, b, c, d, ..]) => u64::from(u32::from_le_bytes([a, b, c, d])) + 1,
            AdapterIdentity::Process(number) => number.saturating_add(1),
        }
    }
}

impl From<&Adapter> for AdapterIdentity {
    fn from(adapter: &Adapter) -> Self {
        adapter.content().map_or(AdapterIdentity::Process(adapter.id()), AdapterIdentity::Content)
    }
}

impl ScopeAdapter {
    /// The scale of the adapter as it was loaded.
    const OWN_SCALE: f32 = 1.0;

    /// The same adapter with the scale that it was loaded with.
    #[must_use]
    pub fn at_own_scale(self) -> Self {
        ScopeAdapter { scale_bits: Self::OWN_SCALE.to_bits(), ..self }
    }
}

impl From<&AdapterUse> for ScopeAdapter {
    fn from(used: &AdapterUse) -> Self {
        let (_, scale_bits) = used.key();
        ScopeAdapter { identity: (&*used.adapter).into(), scale_bits, name: used.adapter.name().clone() }
    }
}

impl PrefixScope {
    /// Whether it means the same in another process. The number of an adapter does not.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        let is_known = |adapter: &ScopeAdapter| matches!(adapter.identity, AdapterIdentity::Content(_));
        self.adapter.as_ref().is_none_or(is_known)
    }
}
