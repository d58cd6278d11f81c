//! Pools on the device: slots for copies of experts that are on the host.
//!
//! All layers with experts of one shape share a pool. Most slots of a pool form a cache of frequently used experts, managed by
//! [`HotSet`]. The host computes the experts that a step uses but the cache does not hold; separate threads may upload them
//! meanwhile ([`Uploads`]), so no step waits for an upload. The other slots are for long prompts, whose experts are all
//! streamed to the device. They form two halves: the device computes with one while the other is filled
//! ([`stream`](super::stream)).

use std::collections::HashMap;

use cuelight_shaders::experts::Experts;

use super::hot_set::HotSet;
use super::uploads::{UploadRequest, Uploads};
use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// Copies on the device of experts that are on the host.
pub struct ExpertCache {
    pools: Vec<PoolState>,
    /// Each layer with experts on the host: its share of a pool; `None` if it has no pool.
    layers: Vec<Option<PooledLayer>>,
    uploads: Uploads,
    /// Experts that were admitted to the cache and have no slot yet: pool, layer and number.
    admitted: Vec<(usize, usize, usize)>,
    /// Number of experts that have a slot and are being uploaded to it.
    in_flight: usize,
    uploaded: Uploaded,
}

/// Counts of uploads to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uploaded {
    pub experts: u64,
    pub bytes: u64,
}

/// A pool on the device for experts of some layers.
#[derive(Debug, Clone)]
pub struct ExpertPool {
    /// The segment of the device's stage that computes with the pool.
    pub segment: usize,
    /// Number of experts that the pool holds.
    pub slots: usize,
    /// Number of slots, the last ones, for streaming prompts: even and less than `slots`.
    pub stream_slots: usize,
    /// The layers, counted among those with experts on the host.
    pub layers: Vec<usize>,
}

struct PoolState {
    segment: usize,
    experts: HotSet,
    /// The stream slots, after those of the cache.
    halves: [Half; 2],
    slots_of_half: usize,
    next_half: usize,
}

/// Half of the stream slots.
struct Half {
    first: usize,
    /// Number of experts that are being uploaded to it.
    pending: usize,
}

#[derive(Debug, Clone, Copy)]
struct PooledLayer {
    pool: usize,
    /// The number of the layer's first expert among the experts of the pool.
    first: usize,
    n_experts: usize,
    top_k: usize,
}

/// The routes of a step at one layer, split between host and device.
#[derive(Debug, PartialEq)]
pub(super) struct SplitRoutes {
    /// [rows, 2 top_k] for the host; `None` if the device computes all of them.
    pub host: Option<Vec<f32>>,
    /// The segment that computes the other routes, and these routes [rows, 3 top_k].
    pub device: Option<(usize, Vec<f32>)>,
    /// Number of routes that the device computes.
    pub device_routes: usize,
}

/// Some of a layer's experts that are in one half of the stream slots or are being uploaded to it.
#[derive(Debug)]
pub(super) struct Chunk {
    pub layer: usize,
    pub experts: Vec<usize>,
    pool: usize,
    half: usize,
    first_slot: usize,
}

impl Chunk {
    /// Each expert and its slot.
    pub fn slots(&self) -> impl Iterator<Item = (usize, usize)> {
        self.experts.iter().copied().zip(self.first_slot..)
    }
}

impl ExpertCache {
    /// Maximum number of experts being uploaded to the cache. An expert that is missed often will be missed again, so skipped
    /// admissions are repeated later. For a pool the maximum is also half of its slots, because a slot is unusable during an
    /// upload.
    const MAX_IN_FLIGHT: usize = 2;

    /// A cache with pools for the experts of these layers; a layer is in at most one pool. Each of `uploads` gets a thread.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn new(
        layers: Vec<Experts>,
        pools: Vec<ExpertPool>,
        uploads: Vec<Box<dyn ExpertUpload>>,
    ) -> std::io::Result<Self> {
        let mut of_layers = vec![None; layers.len()];
        let mut states = Vec::new();
        for (pool, ExpertPool { segment, slots, stream_slots, layers: of_pool }) in pools.into_iter().enumerate() {
            let mut first = 0;
            for layer in of_pool {
                let (n_experts, top_k) = (layers[layer].n_experts(), layers[layer].top_k());
                of_layers[layer] = Some(PooledLayer { pool, first, n_experts, top_k });
                first += n_experts;
            }
            let (cached, slots_of_half) = (slots - stream_slots, stream_slots / 2);
            let halves = [cached, cached + slots_of_half].map(|first| Half { first, pending: 0 });
            states.push(PoolState {
                segment,
                experts: HotSet::new(first, cached),
                halves,
                slots_of_half,
                next_half: 0,
            });
        }
        let uploads = Uploads::start(layers, uploads)?;
        let (admitted, in_flight, uploaded) = (Vec::new(), 0, Uploaded::default());
        Ok(ExpertCache { pools: states, layers: of_layers, uploads, admitted, in_flight, uploaded })
    }

    /// Splits a layer's routes [rows, 2 top_k] between the host and the device, and admits experts that are missed often to the
    /// cache.
    pub(super) fn split(&mut self, layer: usize, routes: Vec<f32>) -> SplitRoutes {
        let Some(PooledLayer { pool: number, first, top_k, .. }) = self.layers[layer] else {
            return SplitRoutes { host: Some(routes), device: None, device_routes: 0 };
        };
        let (cached, missing) = self.find(layer, &routes);
        let most = (self.pools[number].experts.slots() / 2).clamp(1, Self::MAX_IN_FLIGHT);
        for expert in missing {
            if self.admitted.len() + self.in_flight < most && self.pools[number].experts.admit(first + expert) {
                self.admitted.push((number, layer, expert));
            }
        }
        let (device, device_routes) = with_slots(&routes, top_k, &cached);
        let mut host = routes;
        let mut host_routes = 0;
        for row in host.chunks_exact_mut(2 * top_k) {
            for expert in &mut row[..top_k] {
                if *expert >= 0.0 && cached.contains_key(&(*expert as usize)) {
                    *expert = ELSEWHERE;
                }
                host_routes += usize::from(*expert >= 0.0);
            }
        }
        SplitRoutes {
            host: (host_routes > 0 || device_routes == 0).then_some(host),
            device: (device_routes > 0).then_some((self.pools[number].segment, device)),
            device_routes,
        }
    }

    /// The experts that these routes use: those in the cache with their slots, and the others, each once, in the order of the
    /// routes.
    pub(super) fn find(&mut self, layer: usize, routes: &[f32]) -> (HashMap<usize, usize>, Vec<usize>) {
        let Some(PooledLayer { pool, first, top_k, .. }) = self.layers[layer] else {
            return (HashMap::new(), Vec::new());
        };
        let experts = &mut self.pools[pool].experts;
        // A step counts as one use of an expert, regardless of the number of rows.
        let mut found: HashMap<usize, Option<usize>> = HashMap::new();
        let mut missing = Vec::new();
        for expert in routes.chunks_exact(2 * top_k).flat_map(|row| &row[..top_k]).filter(|expert| **expert >= 0.0) {
            let expert = *expert as usize;
            found.entry(expert).or_insert_with(|| {
                let slot = experts.use_expert(first + expert);
                missing.extend(slot.is_none().then_some(expert));
                slot
            });
        }
        (found.into_iter().filter_map(|(expert, slot)| Some((expert, slot?))).collect(), missing)
    }

    /// Starts the uploads of admitted experts. No running computation may use the experts that are evicted for them.
    pub(super) fn upload(&mut self) -> Result<(), EngineError> {
        while let Some(done) = self.uploads.next_done() {
            self.record(done?);
        }
        for (number, layer, expert) in std::mem::take(&mut self.admitted) {
            let Some(PooledLayer { first, .. }) = self.layers[layer] else { continue };
            let pool = &mut self.pools[number];
            if let Some(slot) = pool.experts.reserve(first + expert) {
                self.in_flight += 1;
                self.uploads.submit(UploadRequest { layer, expert, segment: pool.segment, slot });
            }
        }
        Ok(())
    }

    /// The uploads that have completed since the last call.
    pub(super) fn take_uploaded(&mut self) -> Uploaded {
        std::mem::take(&mut self.uploaded)
    }

    /// Number of a layer's experts that one half of the stream slots holds; `None` if the layer's experts are not streamed.
    pub(super) fn slots_of_half(&self, layer: usize) -> Option<usize> {
        let pool = &self.pools[self.layers.get(layer).copied()??.pool];
        Some(pool.slots_of_half).filter(|slots| *slots > 0)
    }

    /// The segment that computes a layer's experts, with its routes [rows, 3 top_k] to the experts in these slots; `None` if
    /// there are no such routes. `routes` is [rows, 2 top_k].
    pub(super) fn pass(
        &self,
        layer: usize,
        routes: &[f32],
        slots: &HashMap<usize, usize>,
    ) -> Option<(usize, Vec<f32>)> {
        let PooledLayer { pool, top_k, .. } = self.layers[layer]?;
        let (routes, count) = with_slots(routes, top_k, slots);
        (count > 0).then_some((self.pools[pool].segment, routes))
    }

    /// Number of a layer's routes [rows, 2 top_k] that go to experts in these slots.
    pub(super) fn routes_to(&self, layer: usize, routes: &[f32], slots: &HashMap<usize, usize>) -> usize {
        self.layers[layer].map_or(0, |pooled| with_slots(routes, pooled.top_k, slots).1)
    }

    /// Starts the upload of some of a layer's experts, at most as many as a half holds. The computation with the previous chunk
    /// in that half must have completed.
    pub(super) fn upload_chunk(&mut self, layer: usize, experts: Vec<usize>) -> Option<Chunk> {
        let PooledLayer { pool: number, .. } = self.layers[layer]?;
        let pool = &mut self.pools[number];
        let half = pool.next_half;
        pool.next_half = 1 - half;
        let Half { first, pending } = &mut pool.halves[half];
        assert!(experts.len() <= pool.slots_of_half && *pending == 0, "the half is still being filled");
        *pending = experts.len();
        let chunk = Chunk { layer, pool: number, half, first_slot: *first, experts };
        for (expert, slot) in chunk.slots() {
            self.uploads.submit(UploadRequest { layer, expert, segment: pool.segment, slot });
        }
        Some(chunk)
    }

    /// Starts the upload of experts of a layer before its routes are known: the most used ones that are not in the cache.
    pub(super) fn prefetch(&mut self, layer: usize) -> Option<Chunk> {
        let slots = self.slots_of_half(layer)?;
        let PooledLayer { pool, first, n_experts, .. } = self.layers[layer]?;
        let mut likely = self.pools[pool].experts.missing(first..first + n_experts);
        likely.truncate(slots);
        likely.iter_mut().for_each(|expert| *expert -= first);
        self.upload_chunk(layer, likely)
    }

    /// Waits until a chunk has been uploaded.
    pub(super) fn await_chunk(&mut self, chunk: &Chunk) -> Result<(), EngineError> {
        while self.pools[chunk.pool].halves[chunk.half].pending > 0 {
            let done = self.uploads.wait()?;
            self.record(done);
        }
        Ok(())
    }

    /// Records a completed upload.
    fn record(&mut self, (request, bytes): (UploadRequest, u64)) {
        self.uploaded.experts += 1;
        self.uploaded.bytes += bytes;
        let Some(PooledLayer { pool, first, .. }) = self.layers[request.layer] else { return };
        let pool = &mut self.pools[pool];
        match pool.halves.iter_mut().rev().find(|half| request.slot >= half.first) {
            Some(half) => half.pending -= 1,
            None => {
                pool.experts.arrived(first + request.expert);
                self.in_flight -= 1;
            }
        }
    }
}

/// The expert number of a route that is computed elsewhere.
const ELSEWHERE: f32 = -1.0;

/// Routes [rows, 3 top_k] to the experts that have slots, from routes [rows, 2 top_k], and their number.
fn with_slots(routes: &[f32], top_k: usize, slots: &HashMap<usize, usize>) -> (Vec<f32>, usize) {
    let mut slotted = Vec::with_capacity(routes.len() / 2 * 3);
    let mut count = 0;
    for (experts, weights) in routes.chunks_exact(2 * top_k).map(|row| row.split_at(top_k)) {
        let slot_of = |expert: &f32| if *expert < 0.0 { None } else { slots.get(&(*expert as usize)).copied() };
        slotted.extend(experts.iter().map(|expert| slot_of(expert).map_or(ELSEWHERE, |_| *expert)));
        slotted.extend_from_slice(weights);
        slotted.extend(experts.iter().map(|expert| slot_of(expert).map_or(ELSEWHERE, |slot| slot as f32)));
        count += experts.iter().filter(|expert| slot_of(expert).is_some()).count();
    }
    (slotted, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuelight_shaders::experts::{ExpertMatrix, RouteWeighting};
    use cuelight_shaders::glu::Activation;
    use cuelight_shaders::quant::{Format, random};
    use std::time::{Duration, Instant};

    /// Uploads nothing and reports success.
    struct NoDevice;

    impl ExpertUpload for NoDevice {
        fn upload(&mut self, _: (usize, usize), (layer, _): (&Experts, usize)) -> Result<u64, EngineError> {
            Ok(layer.expert_bytes() as u64)
        }
    }

    fn cache(slots: usize, stream_slots: usize) -> ExpertCache {
        let layer = |seed| {
            let matrix = |name: &str, outputs: usize, columns| {
                ExpertMatrix::new(random::weight(name, Format::F32, 4 * outputs, columns, seed), 4, None).unwrap()
            };
            let matrices = [matrix("gate", 8, 16), matrix("up", 8, 16), matrix("down", 16, 8)];
            Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap()
        };
        let pool = ExpertPool { segment: 7, slots, stream_slots, layers: vec![0, 2] };
        let uploads: Vec<Box<dyn ExpertUpload>> = vec![Box::new(NoDevice), Box::new(NoDevice)];
        ExpertCache::new(vec![layer(1), layer(2), layer(3)], vec![pool], uploads).unwrap()
    }

    /// Waits until `count` uploads have completed.
    fn await_arrivals(cache: &mut ExpertCache, count: u64) {
        let (mut arrived, began) = (0, Instant::now());
        while arrived < count {
            assert!(began.elapsed() < Duration::from_secs(20), "no upload completes");
            cache.upload().unwrap();
            arrived += cache.take_uploaded().experts;
        }
    }

    #[test]
    fn a_missing_expert_is_computed_on_the_host_and_then_cached() {
        let mut cache = cache(4, 0);
        // Two rows, of experts 3 and 1, and of 3 and 0.
        let routes = vec![3.0, 1.0, 0.6, 0.4, 3.0, 0.0, 0.5, 0.5];
        let first = cache.split(2, routes.clone());
        assert_eq!(first, SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 });
        await_arrivals(&mut cache, 2);

        let second = cache.split(2, routes.clone());
        assert_eq!(second.host, Some(vec![-1.0, -1.0, 0.6, 0.4, -1.0, 0.0, 0.5, 0.5]));
        // Slots are assigned from the last to the first.
        let device = vec![3.0, 1.0, 0.6, 0.4, 3.0, 2.0, 3.0, -1.0, 0.5, 0.5, 3.0, -1.0];
        assert_eq!((second.device, second.device_routes), (Some((7, device)), 3));

        await_arrivals(&mut cache, 1);
        let third = cache.split(2, routes.clone());
        assert_eq!((third.host, third.device_routes), (None, 4), "the device computes all routes");
        assert_eq!(cache.split(0, routes).device_routes, 0, "the experts of another layer are different ones");
    }

    #[test]
    fn chunks_alternate_between_the_halves_of_the_stream_slots() {
        let mut cache = cache(7, 4);
        assert_eq!((cache.slots_of_half(2), cache.slots_of_half(1)), (Some(2), None));
        let first = cache.upload_chunk(2, vec![3, 0]).unwrap();
        let second = cache.upload_chunk(2, vec![1]).unwrap();
        cache.await_chunk(&second).unwrap();
        cache.await_chunk(&first).unwrap();
        assert_eq!(first.slots().collect::<Vec<_>>(), [(3, 3), (0, 4)]);
        assert_eq!(second.slots().collect::<Vec<_>>(), [(1, 5)]);
        let third = cache.prefetch(0).unwrap();
        cache.await_chunk(&third).unwrap();
        assert_eq!((third.experts.len(), third.slots().next().unwrap().1), (2, 3), "the half of the first chunk");
        let routes = [3.0, 1.0, 0.6, 0.4, 3.0, 0.0, 0.5, 0.5];
        let passed = vec![3.0, -1.0, 0.6, 0.4, 3.0, -1.0, 3.0, 0.0, 0.5, 0.5, 3.0, 4.0];
        assert_eq!(cache.pass(2, &routes, &first.slots().collect()), Some((7, passed)));
        assert_eq!(cache.pass(2, &routes, &HashMap::new()), None);
        assert_eq!(cache.take_uploaded().experts, 5);
        assert_eq!(cache.split(2, routes.to_vec()).device_routes, 0, "streamed experts are not cached");
    }

    #[test]
    fn the_host_computes_all_experts_of_a_layer_without_a_pool() {
        let mut cache = cache(3, 0);
        let routes = vec![3.0, 1.0, 0.6, 0.4];
        let all = SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 };
        assert_eq!(cache.split(1, routes), all);
    }
}
