//! Divides a device's expert cache among layers.
//!
//! Layers whose experts have the same shape share a pool of slots, in which the most used experts of all its layers stay. Each
//! pool gets a part of the cache in proportion to its layers' part of all experts. A pool that exceeds the device's largest
//! allocation is divided into several pools of fewer layers.

use cuelight_shaders::experts::Experts;

use super::error::LoadError;
use crate::backend::vulkan;
use crate::device::ExpertStreaming;

/// A planned pool for the experts of `layers`, which are indices among the layers whose experts the host has.
pub(super) struct PlannedPool {
    pub experts: Experts,
    /// Slots, each for one expert.
    pub slots: usize,
    /// Slots of these that are for streaming experts of long prompts.
    pub stream_slots: usize,
    pub layers: Vec<usize>,
}

/// Divides `bytes` of a device that allocates at most `most_at_once` bytes at once.
pub(super) fn pools(
    layers: &[Experts],
    bytes: u64,
    most_at_once: u64,
    streaming: ExpertStreaming,
) -> Result<Vec<PlannedPool>, LoadError> {
    let stored = |layer: &usize| layers[*layer].slot_bytes() * layers[*layer].n_experts() as u64;
    let all: u64 = (0..layers.len()).map(|layer| stored(&layer)).sum();
    let of_shape = |shape: &[usize]| -> Vec<PlannedPool> {
        let of_layers = |layers: &[usize]| {
            let stored: u64 = layers.iter().map(stored).sum();
            (u128::from(bytes) * u128::from(stored) / u128::from(all.max(1))) as u64
        };
        let parts = of_layers(shape).min(all).div_ceil(most_at_once.max(1)).clamp(1, shape.len() as u64);
        let each = shape.len().div_ceil(parts as usize);
        let planned = |of_pool| planned(layers, of_pool, of_layers(of_pool), streaming);
        shape.chunks(each).filter_map(planned).collect()
    };
    let pools: Vec<PlannedPool> = shapes(layers).iter().flat_map(|shape| of_shape(shape)).collect();
    if pools.is_empty() && !layers.is_empty() {
        let least_bytes = layers.iter().map(Experts::slot_bytes).max().unwrap_or(0);
        return Err(LoadError::ExpertCacheTooSmall { bytes, least_bytes });
    }
    Ok(pools)
}

/// The layers grouped by the shape of their experts.
fn shapes(layers: &[Experts]) -> Vec<Vec<usize>> {
    let mut shapes: Vec<Vec<usize>> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        match shapes.iter_mut().find(|shape| layers[shape[0]].shares_pool(layer)) {
            Some(shape) => shape.push(index),
            None => shapes.push(vec![index]),
        }
    }
    shapes
}

/// A pool with as many slots as `bytes` allow, at most one per expert; `None` if not even one fits.
fn planned(layers: &[Experts], of_pool: &[usize], bytes: u64, streaming: ExpertStreaming) -> Option<PlannedPool> {
    let first = &layers[of_pool[0]];
    let most = of_pool.len() * first.n_experts();
    let mut slots = usize::try_from(bytes / first.slot_bytes().max(1)).unwrap_or(usize::MAX).min(most);
    while slots > 0 {
        let experts = first.pool(slots);
        if vulkan::weights_bytes(&[&experts]) <= bytes {
            let stream_slots = stream_slots(slots, first.n_experts(), streaming);
            return Some(PlannedPool { experts, slots, stream_slots, layers: of_pool.to_vec() });
        }
        slots -= 1;
    }
    None
}

/// How many slots are for streaming: one per expert of a layer, at most half of all slots, in two equal halves. If a layer would
/// need too many passes over them, [`ExpertStreaming::Auto`] reserves none.
fn stream_slots(slots: usize, n_experts: usize, streaming: ExpertStreaming) -> usize {
    const MOST_PASSES: usize = 8;
    let halves = n_experts.min(slots / 2).div_ceil(2);
    match streaming {
        ExpertStreaming::Off => 0,
        ExpertStreaming::Auto if halves * MOST_PASSES < n_experts => 0,
        // At least one slot stays with the cache.
        ExpertStreaming::Auto | ExpertStreaming::FromRows(_) => 2 * halves.min((slots - 1) / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuelight_shaders::experts::{ExpertMatrix, RouteWeighting};
    use cuelight_shaders::glu::Activation;
    use cuelight_shaders::quant::{Format, random};

    const N_EXPERTS: usize = 8;

    fn layers(down: &[Format]) -> Vec<Experts> {
        let layer = |(index, down): (usize, &Format)| {
            let matrix = |stem: &str, format, outputs: usize, columns| {
                let weight = random::weight(&format!("{stem}.{index}"), format, N_EXPERTS * outputs, columns, 1);
                ExpertMatrix::new(weight, N_EXPERTS, None).unwrap()
            };
            let [gate, up] = ["gate", "up"].map(|stem| matrix(stem, Format::Q4_0, 256, 512));
            let down = matrix("down", *down, 512, 256);
            Experts::new([gate, up, down], Activation::Silu, RouteWeighting::Output, 2).unwrap()
        };
        down.iter().enumerate().map(layer).collect()
    }

    fn bytes_of(pools: &[PlannedPool]) -> u64 {
        pools.iter().map(|pool| vulkan::weights_bytes(&[&pool.experts])).sum()
    }

    #[test]
    fn layers_of_one_shape_share_a_pool_and_pools_stay_within_the_bytes() {
        let layers = layers(&[Format::Q4_0, Format::Q8_0, Format::Q4_0, Format::Q4_0]);
        let slot = layers[0].slot_bytes();
        for bytes in [5 * slot, 9 * slot + 1, 16 * slot - 1, 1000 * slot] {
            let pools = pools(&layers, bytes, u64::MAX, ExpertStreaming::Auto).unwrap();
            assert!(bytes_of(&pools) <= bytes);
            let shared: Vec<&[usize]> = pools.iter().map(|pool| &pool.layers[..]).collect();
            assert_eq!(shared, [&[0, 2, 3][..], &[1]][..pools.len()]);
            assert!(pools[0].slots as u64 >= bytes.min(32 * slot) / slot * 2 / 3 - 1, "{}", pools[0].slots);
            assert!(pools.iter().all(|pool| pool.slots <= pool.layers.len() * N_EXPERTS));
        }
    }

    #[test]
    fn a_pool_too_large_for_one_allocation_is_divided() {
        let layers = layers(&[Format::Q4_0; 4]);
        let slot = layers[0].slot_bytes();
        let pools = pools(&layers, 16 * slot, 6 * slot, ExpertStreaming::Auto).unwrap();
        assert_eq!(pools.iter().map(|pool| pool.layers.len()).collect::<Vec<_>>(), [2, 2]);
        assert!(bytes_of(&pools) <= 16 * slot);
    }

    #[test]
    fn some_slots_are_for_streaming_and_at_least_one_stays_with_the_cache() {
        use ExpertStreaming::{Auto, FromRows, Off};
        let of = |slots, streaming| stream_slots(slots, 128, streaming);
        assert_eq!([1000, 256, 100, 64].map(|slots| of(slots, Auto)), [128, 128, 50, 32]);
        assert_eq!([31, 20, 1].map(|slots| of(slots, Auto)), [0, 0, 0], "too many passes");
        assert_eq!([1000, 20, 3, 2, 1].map(|slots| of(slots, FromRows(1))), [128, 10, 2, 0, 0]);
        assert_eq!(of(1000, Off), 0);
    }

    #[test]
    fn a_cache_smaller_than_one_expert_is_refused_with_the_size_of_one() {
        let layers = layers(&[Format::Q4_0]);
        let least = layers[0].slot_bytes();
        let Err(error) = pools(&layers, least / 2, u64::MAX, ExpertStreaming::Auto) else {
            panic!("half an expert cannot be used")
        };
        assert!(error.to_string().contains("cannot hold one expert"), "{error}");
        assert!(pools(&[], 0, u64::MAX, ExpertStreaming::Auto).unwrap().is_empty());
    }
}
