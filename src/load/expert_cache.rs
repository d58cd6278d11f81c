//! Room on a device for experts that the host has: how it is divided among layers.
//!
//! Layers whose experts have one shape share a pool, in which those that are used often stay, whichever layer they are of. Each
//! pool gets a part of the room as large as its layers' part of all experts. A pool whose tensors were larger than what the
//! device allocates at once is made two, of fewer layers each.

use cuelight_shaders::experts::Experts;

use super::LoadError;
use crate::backend::vulkan;
use crate::device::ExpertStreaming;

/// A pool to be: for experts of these layers, counted among those whose experts the host has.
pub(super) struct PlannedPool {
    pub experts: Experts,
    pub places: usize,
    /// Of those, how many are for prompts.
    pub stream_places: usize,
    pub layers: Vec<usize>,
}

/// Divides `bytes` of a device that allocates at most so many at once.
pub(super) fn pools(
    layers: &[Experts],
    bytes: u64,
    most_at_once: u64,
    streaming: ExpertStreaming,
) -> Result<Vec<PlannedPool>, LoadError> {
    let stored = |layer: &usize| layers[*layer].place_bytes() * layers[*layer].n_experts() as u64;
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
        let least_bytes = layers.iter().map(Experts::place_bytes).max().unwrap_or(0);
        return Err(LoadError::ExpertCacheTooSmall { bytes, least_bytes });
    }
    Ok(pools)
}

/// The layers by the shape of their experts.
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

/// As many places as the bytes are enough for, and no more than there are experts; `None` without any.
fn planned(layers: &[Experts], of_pool: &[usize], bytes: u64, streaming: ExpertStreaming) -> Option<PlannedPool> {
    let first = &layers[of_pool[0]];
    let most = of_pool.len() * first.n_experts();
    let mut places = usize::try_from(bytes / first.place_bytes().max(1)).unwrap_or(usize::MAX).min(most);
    while places > 0 {
        let experts = first.pool(places);
        if vulkan::weights_bytes(&[&experts]) <= bytes {
            let stream_places = stream_places(places, first.n_experts(), streaming);
            return Some(PlannedPool { experts, places, stream_places, layers: of_pool.to_vec() });
        }
        places -= 1;
    }
    None
}

/// How many of the places are for prompts: as many as a layer has experts, but half of all at most, in two halves. Where that is
/// a small part of a layer, each layer would take many passes, and it is not even tried.
fn stream_places(places: usize, n_experts: usize, streaming: ExpertStreaming) -> usize {
    const MOST_PASSES: usize = 8;
    let halves = n_experts.min(places / 2).div_ceil(2);
    match streaming {
        ExpertStreaming::Off => 0,
        ExpertStreaming::Auto if halves * MOST_PASSES < n_experts => 0,
        // One place is left to the cache.
        ExpertStreaming::Auto | ExpertStreaming::FromRows(_) => 2 * halves.min((places - 1) / 2),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn layers_of_one_shape_share_a_pool_and_the_room_is_kept_to_the_byte() {
        let layers = layers(&[Format::Q4_0, Format::Q8_0, Format::Q4_0, Format::Q4_0]);
        let place = layers[0].place_bytes();
        for bytes in [5 * place, 9 * place + 1, 16 * place - 1, 1000 * place] {
            let pools = pools(&layers, bytes, u64::MAX, ExpertStreaming::Auto).unwrap();
            assert!(bytes_of(&pools) <= bytes);
            let shared: Vec<&[usize]> = pools.iter().map(|pool| &pool.layers[..]).collect();
            assert_eq!(shared, [&[0, 2, 3][..], &[1]][..pools.len()]);
            assert!(pools[0].places as u64 >= bytes.min(32 * place) / place * 2 / 3 - 1, "{}", pools[0].places);
            assert!(pools.iter().all(|pool| pool.places <= pool.layers.len() * N_EXPERTS));
        }
    }

    #[test]
    fn a_pool_too_large_for_one_allocation_is_made_several() {
        let layers = layers(&[Format::Q4_0; 4]);
        let place = layers[0].place_bytes();
        let pools = pools(&layers, 16 * place, 6 * place, ExpertStreaming::Auto).unwrap();
        assert_eq!(pools.iter().map(|pool| pool.layers.len()).collect::<Vec<_>>(), [2, 2]);
        assert!(bytes_of(&pools) <= 16 * place);
    }

    #[test]
    fn a_part_of_the_places_is_for_prompts_and_one_at_least_the_caches() {
        use ExpertStreaming::{Auto, FromRows, Off};
        let of = |places, streaming| stream_places(places, 128, streaming);
        assert_eq!([1000, 256, 100, 64].map(|places| of(places, Auto)), [128, 128, 50, 32]);
        assert_eq!([31, 20, 1].map(|places| of(places, Auto)), [0, 0, 0], "too many passes");
        assert_eq!([1000, 20, 3, 2, 1].map(|places| of(places, FromRows(1))), [128, 10, 2, 0, 0]);
        assert_eq!(of(1000, Off), 0);
    }

    #[test]
    fn room_for_no_expert_is_refused_with_what_one_takes() {
        let layers = layers(&[Format::Q4_0]);
        let least = layers[0].place_bytes();
        let Err(error) = pools(&layers, least / 2, u64::MAX, ExpertStreaming::Auto) else {
            panic!("half an expert has no use")
        };
        assert!(error.to_string().contains("--expert-cache"), "{error}");
        assert!(pools(&[], 0, u64::MAX, ExpertStreaming::Auto).unwrap().is_empty());
    }
}
