//! How many sequences use each adapter.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The sequences of one adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OfAdapter {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
}

/// The sequences of each adapter by its name. The empty name stands for the model without an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterCounts(BTreeMap<Arc<str>, OfAdapter>);

impl AdapterCounts {
    /// The numbers of running and waiting sequences, none of which has an adapter.
    #[must_use]
    pub fn new(running: usize, waiting: usize) -> Self {
        AdapterCounts(BTreeMap::from([("".into(), OfAdapter { running, waiting })]))
    }

    /// One of the running sequences has this adapter.
    pub fn add_running(&mut self, name: Arc<str>) {
        self.move_to(name, |of_adapter| &mut of_adapter.running);
    }

    /// One of the waiting sequences has this adapter.
    pub fn add_waiting(&mut self, name: Arc<str>) {
        self.move_to(name, |of_adapter| &mut of_adapter.waiting);
    }

    fn move_to(&mut self, name: Arc<str>, count: fn(&mut OfAdapter) -> &mut usize) {
        let without = count(self.0.entry("".into()).or_default());
        *without = without.saturating_sub(1);
        *count(self.0.entry(name).or_default()) += 1;
    }

    /// The sequences of each adapter, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, OfAdapter)> {
        self.0.iter().map(|(name, of_adapter)| (name, *of_adapter))
    }

    /// The sequences of an adapter.
    #[must_use]
    pub fn of(&self, name: &str) -> OfAdapter {
        self.0.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_with_an_adapter_are_counted_once() {
        let mut counts = AdapterCounts::new(3, 1);
        counts.add_running("a".into());
        counts.add_running("a".into());
        counts.add_waiting("b".into());
        let expected = [("", 1, 0), ("a", 2, 0), ("b", 0, 1)];
        let found: Vec<_> = counts.iter().map(|(name, of)| (&**name, of.running, of.waiting)).collect();
        assert_eq!(found, expected);
        assert_eq!(counts.of("c"), OfAdapter::default());
    }
}
