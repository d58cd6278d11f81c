//! The device's pools: places for experts that the host has.
//!
//! All layers of one shape share a pool. Most of its places are a cache: experts used often stay there ([`HotSet`] says
//! which). What a step uses and is not there the host computes at once, and it may be brought meanwhile, by threads of
//! their own ([`Uploads`]); so no step waits for an expert to come. The other places are for long prompts, whose
//! experts all come to the device, in two halves: with one it computes while the other is filled
//! ([`stream`](super::stream)).

use std::collections::HashMap;

use cuelight_shaders::experts::Experts;

use super::hot_set::HotSet;
use super::uploads::{Order, Uploads};
use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// Experts that the host has and the device may have too.
pub struct ExpertCache {
    pools: Vec<PoolState>,
    /// For each layer with experts on the host where they may be; `None` where there is no room for any.
    layers: Vec<Option<LayerPlace>>,
    uploads: Uploads,
    /// Experts that were promised a place in the cache: their pool, layer and number.
    wanted: Vec<(usize, usize, usize)>,
    /// Of those that have got one, how many are on their way.
    under_way: usize,
    brought: Brought,
}

/// Experts that came to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Brought {
    pub experts: u64,
    pub bytes: u64,
}

/// Room on the device for experts of some layers.
#[derive(Debug, Clone)]
pub struct ExpertPool {
    /// The piece of the device's stage that computes with it.
    pub piece: usize,
    /// How many experts there is room for.
    pub places: usize,
    /// How many of the places, the last ones, are for prompts: an even number, and fewer than all.
    pub stream_places: usize,
    /// The layers, counted among those with experts on the host.
    pub layers: Vec<usize>,
}

struct PoolState {
    piece: usize,
    experts: HotSet,
    /// Behind the cache's.
    halves: [Half; 2],
    places_of_half: usize,
    next_half: usize,
}

/// Half of the places for prompts.
struct Half {
    first: usize,
    /// Experts on their way to it.
    coming: usize,
}

#[derive(Debug, Clone, Copy)]
struct LayerPlace {
    pool: usize,
    /// The number of the layer's first expert among those of the pool.
    first: usize,
    n_experts: usize,
    top_k: usize,
}

/// A step's routes at one layer, divided.
#[derive(Debug, PartialEq)]
pub(super) struct SplitRoutes {
    /// [rows, 2 top_k] for the host, when it has something to do.
    pub host: Option<Vec<f32>>,
    /// The piece that computes the others, and its routes [rows, 3 top_k].
    pub device: Option<(usize, Vec<f32>)>,
    /// How many routes the device has.
    pub device_routes: usize,
}

/// Some of a layer's experts in a half of the places for prompts, or on their way there.
#[derive(Debug)]
pub(super) struct Chunk {
    pub layer: usize,
    pub experts: Vec<usize>,
    pool: usize,
    half: usize,
    first_place: usize,
}

impl Chunk {
    /// Each expert and its place.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.experts.iter().copied().zip(self.first_place..)
    }
}

impl ExpertCache {
    /// Experts on their way to the cache at most: what is missed often will be missed again. And to a pool no more than half of
    /// its places, whose experts are gone before others have come.
    const MOST_UNDER_WAY: usize = 2;

    /// Pools for these layers' experts; every layer is in one of them at most. Each of `uploads` gets a thread.
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
        for (pool, ExpertPool { piece, places, stream_places, layers: of_pool }) in pools.into_iter().enumerate() {
            let mut first = 0;
            for layer in of_pool {
                let (n_experts, top_k) = (layers[layer].n_experts(), layers[layer].top_k());
                of_layers[layer] = Some(LayerPlace { pool, first, n_experts, top_k });
                first += n_experts;
            }
            let (cached, places_of_half) = (places - stream_places, stream_places / 2);
            let halves = [cached, cached + places_of_half].map(|first| Half { first, coming: 0 });
            states.push(PoolState { piece, experts: HotSet::new(first, cached), halves, places_of_half, next_half: 0 });
        }
        let uploads = Uploads::start(layers, uploads)?;
        let (wanted, under_way, brought) = (Vec::new(), 0, Brought::default());
        Ok(ExpertCache { pools: states, layers: of_layers, uploads, wanted, under_way, brought })
    }

    /// Divides a layer's routes [rows, 2 top_k] between the host and the device, and sees to it that experts come that are
    /// missed often.
    pub(super) fn split(&mut self, layer: usize, routes: Vec<f32>) -> SplitRoutes {
        let Some(LayerPlace { pool: number, first, top_k, .. }) = self.layers[layer] else {
            return SplitRoutes { host: Some(routes), device: None, device_routes: 0 };
        };
        let (here, missing) = self.find(layer, &routes);
        let most = (self.pools[number].experts.places() / 2).clamp(1, Self::MOST_UNDER_WAY);
        for expert in missing {
            if self.wanted.len() + self.under_way < most && self.pools[number].experts.wants(first + expert) {
                self.wanted.push((number, layer, expert));
            }
        }
        let (device, device_routes) = placed(&routes, top_k, &here);
        let mut host = routes;
        let mut host_routes = 0;
        for row in host.chunks_exact_mut(2 * top_k) {
            for expert in &mut row[..top_k] {
                if *expert >= 0.0 && here.contains_key(&(*expert as usize)) {
                    *expert = ELSEWHERE;
                }
                host_routes += usize::from(*expert >= 0.0);
            }
        }
        SplitRoutes {
            host: (host_routes > 0 || device_routes == 0).then_some(host),
            device: (device_routes > 0).then_some((self.pools[number].piece, device)),
            device_routes,
        }
    }

    /// The places of a layer's experts that are in the cache, of those that these routes use, and the others, each
    /// once, in the order of the routes.
    pub(super) fn find(&mut self, layer: usize, routes: &[f32]) -> (HashMap<usize, usize>, Vec<usize>) {
        let Some(LayerPlace { pool, first, top_k, .. }) = self.layers[layer] else {
            return (HashMap::new(), Vec::new());
        };
        let experts = &mut self.pools[pool].experts;
        // A step uses an expert once, for however many rows.
        let mut found: HashMap<usize, Option<usize>> = HashMap::new();
        let mut missing = Vec::new();
        for expert in routes.chunks_exact(2 * top_k).flat_map(|row| &row[..top_k]).filter(|expert| **expert >= 0.0) {
            let expert = *expert as usize;
            found.entry(expert).or_insert_with(|| {
                let place = experts.use_expert(first + expert);
                missing.extend(place.is_none().then_some(expert));
                place
            });
        }
        (found.into_iter().filter_map(|(expert, place)| Some((expert, place?))).collect(), missing)
    }

    /// Brings experts to the cache that were promised a place: nothing may still be computed with those that make room.
    pub(super) fn bring(&mut self) -> Result<(), EngineError> {
        while let Some(done) = self.uploads.next_done() {
            self.note(done?);
        }
        for (number, layer, expert) in std::mem::take(&mut self.wanted) {
            let Some(LayerPlace { first, .. }) = self.layers[layer] else { continue };
            let pool = &mut self.pools[number];
            if let Some(place) = pool.experts.reserve(first + expert) {
                self.under_way += 1;
                self.uploads.order(Order { layer, expert, piece: pool.piece, place });
            }
        }
        Ok(())
    }

    /// What has come since this was asked last.
    pub(super) fn brought(&mut self) -> Brought {
        std::mem::take(&mut self.brought)
    }

    /// How many of a layer's experts have room at once among the places for prompts; `None` where a prompt's experts do not
    /// come to the device.
    pub(super) fn places_of_half(&self, layer: usize) -> Option<usize> {
        let pool = &self.pools[self.layers.get(layer).copied()??.pool];
        Some(pool.places_of_half).filter(|places| *places > 0)
    }

    /// The piece that computes with a layer's experts, with the routes [rows, 2 top_k] to those that are at these
    /// places; `None` where there are no such routes.
    pub(super) fn pass(
        &self,
        layer: usize,
        routes: &[f32],
        places: &HashMap<usize, usize>,
    ) -> Option<(usize, Vec<f32>)> {
        let LayerPlace { pool, top_k, .. } = self.layers[layer]?;
        let (routes, count) = placed(routes, top_k, places);
        (count > 0).then_some((self.pools[pool].piece, routes))
    }

    /// How many of a layer's routes [rows, 2 top_k] go to experts at these places.
    pub(super) fn routes_to(&self, layer: usize, routes: &[f32], places: &HashMap<usize, usize>) -> usize {
        self.layers[layer].map_or(0, |place| placed(routes, place.top_k, places).1)
    }

    /// Sends for some of a layer's experts, no more than have room in a half. The device must be done with the chunk of this
    /// pool before the last.
    pub(super) fn send_for(&mut self, layer: usize, experts: Vec<usize>) -> Option<Chunk> {
        let LayerPlace { pool: number, .. } = self.layers[layer]?;
        let pool = &mut self.pools[number];
        let half = pool.next_half;
        pool.next_half = 1 - half;
        let Half { first, coming } = &mut pool.halves[half];
        assert!(experts.len() <= pool.places_of_half && *coming == 0, "a half is free when it is filled");
        *coming = experts.len();
        let chunk = Chunk { layer, pool: number, half, first_place: *first, experts };
        for (expert, place) in chunk.places() {
            self.uploads.order(Order { layer, expert, piece: pool.piece, place });
        }
        Some(chunk)
    }

    /// Sends for experts of a layer before it is known which ones it needs: those that it used most lately and that are
    /// not in the cache.
    pub(super) fn send_for_likely(&mut self, layer: usize) -> Option<Chunk> {
        let places = self.places_of_half(layer)?;
        let LayerPlace { pool, first, n_experts, .. } = self.layers[layer]?;
        let mut likely = self.pools[pool].experts.missing(first..first + n_experts);
        likely.truncate(places);
        likely.iter_mut().for_each(|expert| *expert -= first);
        self.send_for(layer, likely)
    }

    /// Waits until a chunk is there.
    pub(super) fn await_chunk(&mut self, chunk: &Chunk) -> Result<(), EngineError> {
        while self.pools[chunk.pool].halves[chunk.half].coming > 0 {
            let done = self.uploads.wait()?;
            self.note(done);
        }
        Ok(())
    }

    fn note(&mut self, (order, bytes): (Order, u64)) {
        self.brought.experts += 1;
        self.brought.bytes += bytes;
        let Some(LayerPlace { pool, first, .. }) = self.layers[order.layer] else { return };
        let pool = &mut self.pools[pool];
        match pool.halves.iter_mut().rev().find(|half| order.place >= half.first) {
            Some(half) => half.coming -= 1,
            None => {
                pool.experts.arrived(first + order.expert);
                self.under_way -= 1;
            }
        }
    }
}

/// An expert of a route that somebody else computes.
const ELSEWHERE: f32 = -1.0;

/// Routes [rows, 3 top_k] to the experts that have places, out of routes [rows, 2 top_k], and how many there are.
fn placed(routes: &[f32], top_k: usize, places: &HashMap<usize, usize>) -> (Vec<f32>, usize) {
    let mut placed = Vec::with_capacity(routes.len() / 2 * 3);
    let mut count = 0;
    for (experts, weights) in routes.chunks_exact(2 * top_k).map(|row| row.split_at(top_k)) {
        let place_of = |expert: &f32| if *expert < 0.0 { None } else { places.get(&(*expert as usize)).copied() };
        placed.extend(experts.iter().map(|expert| place_of(expert).map_or(ELSEWHERE, |_| *expert)));
        placed.extend_from_slice(weights);
        placed.extend(experts.iter().map(|expert| place_of(expert).map_or(ELSEWHERE, |place| place as f32)));
        count += experts.iter().filter(|expert| place_of(expert).is_some()).count();
    }
    (placed, count)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cuelight_shaders::experts::{ExpertMatrix, RouteWeighting};
    use cuelight_shaders::glu::Activation;
    use cuelight_shaders::quant::{Format, random};
    use std::time::{Duration, Instant};

    /// Takes note of what would be brought.
    struct NoDevice;

    impl ExpertUpload for NoDevice {
        fn bring(&mut self, _: (usize, usize), (layer, _): (&Experts, usize)) -> Result<u64, EngineError> {
            Ok(layer.expert_bytes() as u64)
        }
    }

    fn cache(places: usize, stream_places: usize) -> ExpertCache {
        let layer = |seed| {
            let matrix = |name: &str, outputs: usize, columns| {
                ExpertMatrix::new(random::weight(name, Format::F32, 4 * outputs, columns, seed), 4, None).unwrap()
            };
            let matrices = [matrix("gate", 8, 16), matrix("up", 8, 16), matrix("down", 16, 8)];
            Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap()
        };
        let pool = ExpertPool { piece: 7, places, stream_places, layers: vec![0, 2] };
        let uploads: Vec<Box<dyn ExpertUpload>> = vec![Box::new(NoDevice), Box::new(NoDevice)];
        ExpertCache::new(vec![layer(1), layer(2), layer(3)], vec![pool], uploads).unwrap()
    }

    /// Waits until so many experts have come.
    fn await_arrivals(cache: &mut ExpertCache, count: u64) {
        let (mut arrived, began) = (0, Instant::now());
        while arrived < count {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody brings anything");
            cache.bring().unwrap();
            arrived += cache.brought().experts;
        }
    }

    #[test]
    fn what_is_missed_is_the_hosts_and_comes_and_is_the_devices_from_then_on() {
        let mut cache = cache(4, 0);
        // Two rows, of experts 3 and 1, and of 3 and 0.
        let routes = vec![3.0, 1.0, 0.6, 0.4, 3.0, 0.0, 0.5, 0.5];
        let first = cache.split(2, routes.clone());
        assert_eq!(first, SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 });
        await_arrivals(&mut cache, 2);

        let second = cache.split(2, routes.clone());
        assert_eq!(second.host, Some(vec![-1.0, -1.0, 0.6, 0.4, -1.0, 0.0, 0.5, 0.5]));
        // Places are given out from the last on.
        let device = vec![3.0, 1.0, 0.6, 0.4, 3.0, 2.0, 3.0, -1.0, 0.5, 0.5, 3.0, -1.0];
        assert_eq!((second.device, second.device_routes), (Some((7, device)), 3));

        await_arrivals(&mut cache, 1);
        let third = cache.split(2, routes.clone());
        assert_eq!((third.host, third.device_routes), (None, 4), "nothing is left for the host");
        assert_eq!(cache.split(0, routes).device_routes, 0, "another layer's experts are others");
    }

    #[test]
    fn chunks_take_turns_in_the_places_behind_the_cache() {
        let mut cache = cache(7, 4);
        assert_eq!((cache.places_of_half(2), cache.places_of_half(1)), (Some(2), None));
        let first = cache.send_for(2, vec![3, 0]).unwrap();
        let second = cache.send_for(2, vec![1]).unwrap();
        cache.await_chunk(&second).unwrap();
        cache.await_chunk(&first).unwrap();
        assert_eq!(first.places().collect::<Vec<_>>(), [(3, 3), (0, 4)]);
        assert_eq!(second.places().collect::<Vec<_>>(), [(1, 5)]);
        let third = cache.send_for_likely(0).unwrap();
        cache.await_chunk(&third).unwrap();
        assert_eq!((third.experts.len(), third.places().next().unwrap().1), (2, 3), "the half of the first");
        let routes = [3.0, 1.0, 0.6, 0.4, 3.0, 0.0, 0.5, 0.5];
        let passed = vec![3.0, -1.0, 0.6, 0.4, 3.0, -1.0, 3.0, 0.0, 0.5, 0.5, 3.0, 4.0];
        assert_eq!(cache.pass(2, &routes, &first.places().collect()), Some((7, passed)));
        assert_eq!(cache.pass(2, &routes, &HashMap::new()), None);
        assert_eq!(cache.brought().experts, 5);
        assert_eq!(cache.split(2, routes.to_vec()).device_routes, 0, "what came for a prompt is not cached");
    }

    #[test]
    fn a_layer_without_a_pool_is_all_the_hosts() {
        let mut cache = cache(3, 0);
        let routes = vec![3.0, 1.0, 0.6, 0.4];
        let all = SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 };
        assert_eq!(cache.split(1, routes), all);
    }
}
