//! Metrics of the lower tiers of a replica's KV cache.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::catalogue::*;
use crate::core::cached_unit::UnitKind;
use crate::core::counts::Counts;
use crate::core::tier::{Tier, UnitCounts};

/// Metrics of all tiers.
pub struct TierMetrics([OneTier; Tier::COUNT]);

/// Metrics of one tier.
struct OneTier {
    bytes: Gauge,
    capacity: Gauge,
    /// In the order of [`UnitKind::ALL`].
    units: [OneKind; UnitKind::COUNT],
    load_time: Histogram,
}

/// Metrics of the units of one kind in a tier.
struct OneKind {
    kind: UnitKind,
    present: Gauge,
    stored: Counter,
    dropped: Counter,
    loaded: Counter,
    lost: Counter,
    declined: Counter,
    /// The counts of the policy at the last update.
    counted: UnitCounts,
}

type Labels<const N: usize> = [(&'static str, String); N];

impl OneKind {
    fn new(kind: UnitKind, of_replica: &Labels<3>, of_model: &Labels<2>) -> Self {
        let [present, stored, lost, loaded, declined] = match kind {
            UnitKind::Block => [KV_TIER_BLOCKS, KV_TIER_STORED, KV_TIER_LOST, KV_TIER_LOADED, KV_TIER_DECLINED],
            UnitKind::State => [
                KV_TIER_STATES,
                KV_TIER_STORED_STATES,
                KV_TIER_LOST_STATES,
                KV_TIER_LOADED_STATES,
                KV_TIER_DECLINED_STATES,
            ],
        };
        let lost_at = |reason: &str| {
            let [model, tier] = of_model.clone();
            counter!(lost, &[model, tier, ("reason", reason.to_owned())])
        };
        OneKind {
            kind,
            present: gauge!(present, of_replica),
            stored: counter!(stored, of_model),
            dropped: lost_at("store"),
            loaded: counter!(loaded, of_model),
            lost: lost_at("load"),
            declined: counter!(declined, of_model),
            counted: UnitCounts::default(),
        }
    }

    fn set(&mut self, now: UnitCounts) {
        self.present.set(now.present as f64);
        let before = std::mem::replace(&mut self.counted, now);
        self.stored.increment(now.stored - before.stored);
        self.dropped.increment(now.dropped - before.dropped);
        self.loaded.increment(now.loaded - before.loaded);
        self.lost.increment(now.lost - before.lost);
        self.declined.increment(now.declined - before.declined);
    }
}

impl TierMetrics {
    pub(crate) fn new(model_id: &Arc<str>, replica: usize) -> Self {
        let tier = |tier: Tier| {
            let (model, name) = (("model", model_id.to_string()), ("tier", tier.to_string()));
            let of_replica = [model.clone(), ("replica", replica.to_string()), name.clone()];
            let of_model = [model, name];
            OneTier {
                bytes: gauge!(KV_TIER_BYTES, &of_replica),
                capacity: gauge!(KV_TIER_CAPACITY, &of_replica),
                units: UnitKind::ALL.map(|kind| OneKind::new(kind, &of_replica, &of_model)),
                load_time: histogram!(KV_TIER_LOAD_TIME, &of_model),
            }
        };
        TierMetrics(Tier::ALL.map(tier))
    }

    pub(crate) fn set(&mut self, counts: &Counts) {
        for (tier, now) in self.0.iter_mut().zip(counts.tiers) {
            tier.bytes.set(now.bytes as f64);
            tier.capacity.set(now.capacity_bytes as f64);
            tier.units.iter_mut().for_each(|units| units.set(now[units.kind]));
        }
    }

    /// Records a read.
    pub(crate) fn read(&self, tier: Tier, elapsed: Duration) {
        self.0[tier as usize].load_time.record(elapsed);
    }
}

impl Drop for TierMetrics {
    fn drop(&mut self) {
        for tier in &self.0 {
            let of_kinds = tier.units.iter().map(|units| &units.present);
            [&tier.bytes, &tier.capacity].into_iter().chain(of_kinds).for_each(|gauge| gauge.set(0.0));
        }
    }
}
