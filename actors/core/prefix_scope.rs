//! What decides, besides its tokens, whether two prompts may share cached keys and values.

use std::sync::Arc;

use cuelight_engine::engine::AdapterUse;

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
    /// Its number, which no other adapter of this process has ([`Adapter::id`](cuelight_engine::engine::Adapter::id)).
    pub id: u64,
    /// The bits of its scale ([`AdapterUse::key`]).
    pub scale_bits: u32,
    /// Its name.
    pub name: Arc<str>,
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
        let (id, scale_bits) = used.key();
        ScopeAdapter { id, scale_bits, name: used.adapter.name().clone() }
    }
}

impl PrefixScope {
    /// Whether it means the same in another process. The number of an adapter does not.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        self.adapter.is_none()
    }
}
