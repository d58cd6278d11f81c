//! The client of a request, and whose cached prefixes it may reuse.

use std::sync::Arc;

use crate::core::shared_limit::Client;

/// What the scheduler needs to know about the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tenancy {
    /// Clients share the engine fairly.
    pub client: Client,
    /// Prefixes are shared only among requests with the same salt.
    pub cache_salt: Option<Arc<str>>,
}
