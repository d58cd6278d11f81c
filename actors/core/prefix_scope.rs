//! What decides, besides its tokens, whether two prompts may share cached keys and values.

use std::sync::Arc;

/// Prompts share cached prefixes only within one scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PrefixScope {
    /// The salt of the tenant.
    pub salt: Option<Arc<str>>,
    /// The adapter that changes the model, and the bits of its scale
    /// ([`AdapterUse::key`](cuelight_engine::engine::AdapterUse::key)).
    pub adapter: Option<(u64, u32)>,
}

impl PrefixScope {
    /// Whether it means the same in another process. The number of an adapter does not.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        self.adapter.is_none()
    }
}
