//! soon
/// soon
pub struct KvCache;
