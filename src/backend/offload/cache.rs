//! The device's cache of experts that the host has: those used often are there too, and computed there.
//!
//! All layers of one shape share a pool of places ([`HotSet`] says who has them). What a step uses and is not there the host
//! computes at once, and it may be brought meanwhile: a thread of its own packs it, and the engine writes it to the device while
//! that waits for the host anyway. So no step waits for an expert to come.

use std::collections::HashMap;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use cuelight_shaders::experts::Experts;
use cuelight_shaders::experts::pool::PackedExpert;

use super::hot_set::HotSet;

/// Experts that the host has and the device may have too.
pub struct ExpertCache {
    pools: Vec<PoolState>,
    /// For each layer with experts on the host where they may be; `None` where there is no room for any.
    layers: Vec<Option<LayerPlace>>,
    packer: Packer,
}

/// Room on the device for experts of some layers.
#[derive(Debug, Clone)]
pub struct ExpertPool {
    /// The piece of the device's stage that computes with it.
    pub piece: usize,
    /// How many experts there is room for.
    pub places: usize,
    /// The layers, counted among those with experts on the host.
    pub layers: Vec<usize>,
}

struct PoolState {
    piece: usize,
    experts: HotSet,
}

#[derive(Debug, Clone, Copy)]
struct LayerPlace {
    pool: usize,
    /// The number of the layer's first expert among those of the pool.
    first: usize,
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

/// An expert that was packed, and its place.
pub(super) struct Arrival {
    pub piece: usize,
    pub place: usize,
    pub expert: PackedExpert,
}

impl ExpertCache {
    /// Pools for these layers' experts; every layer is in one of them at most.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn new(layers: Vec<Experts>, pools: Vec<ExpertPool>) -> std::io::Result<Self> {
        let mut of_layers = vec![None; layers.len()];
        let mut states = Vec::new();
        for (pool, ExpertPool { piece, places, layers: of_pool }) in pools.into_iter().enumerate() {
            let mut first = 0;
            for layer in of_pool {
                of_layers[layer] = Some(LayerPlace { pool, first, top_k: layers[layer].top_k() });
                first += layers[layer].n_experts();
            }
            states.push(PoolState { piece, experts: HotSet::new(first, places) });
        }
        Ok(ExpertCache { pools: states, layers: of_layers, packer: Packer::start(layers)? })
    }

    /// Divides a layer's routes [rows, 2 top_k] between the host and the device, and sees to it that experts come that are
    /// missed often.
    pub(super) fn split(&mut self, layer: usize, routes: Vec<f32>) -> SplitRoutes {
        let Some(LayerPlace { pool: number, first, top_k }) = self.layers[layer] else {
            return SplitRoutes { host: Some(routes), device: None, device_routes: 0 };
        };
        let pool = &mut self.pools[number];
        // A step uses an expert once, for however many rows.
        let mut found: HashMap<usize, Option<usize>> = HashMap::new();
        let mut place_of = |expert: usize| {
            *found.entry(expert).or_insert_with(|| {
                let place = pool.experts.use_expert(first + expert);
                if place.is_none() && self.packer.has_time() && pool.experts.wants(first + expert) {
                    self.packer.pack(Wanted { pool: number, layer, expert, in_pool: first + expert });
                }
                place
            })
        };
        let (mut host, mut device) = (routes, Vec::new());
        let (mut device_routes, mut host_routes) = (0, 0);
        for row in host.chunks_exact_mut(2 * top_k) {
            let (experts, weights) = row.split_at_mut(top_k);
            let places = experts.iter().map(|expert| if *expert < 0.0 { None } else { place_of(*expert as usize) });
            let places: Vec<Option<usize>> = places.collect();
            device.extend(experts.iter().zip(&places).map(|(expert, place)| place.map_or(ELSEWHERE, |_| *expert)));
            device.extend_from_slice(weights);
            device.extend(places.iter().map(|place| place.map_or(ELSEWHERE, |place| place as f32)));
            for (expert, _) in experts.iter_mut().zip(&places).filter(|(_, place)| place.is_some()) {
                *expert = ELSEWHERE;
                device_routes += 1;
            }
            host_routes += experts.iter().filter(|expert| **expert >= 0.0).count();
        }
        SplitRoutes {
            host: (host_routes > 0 || device_routes == 0).then_some(host),
            device: (device_routes > 0).then_some((pool.piece, device)),
            device_routes,
        }
    }

    /// Experts that were packed meanwhile, each with a place that is its own from now on: nothing may still be computed with
    /// what was there before.
    pub(super) fn arrivals(&mut self) -> Vec<Arrival> {
        let ready: Vec<(Wanted, PackedExpert)> = self.packer.ready().collect();
        let arrival = |(wanted, expert): (Wanted, PackedExpert)| {
            let pool = &mut self.pools[wanted.pool];
            let place = pool.experts.admit(wanted.in_pool)?;
            Some(Arrival { piece: pool.piece, place, expert })
        };
        ready.into_iter().filter_map(arrival).collect()
    }
}

/// An expert of a route that somebody else computes.
const ELSEWHERE: f32 = -1.0;

/// An expert that is to be brought.
struct Wanted {
    pool: usize,
    layer: usize,
    expert: usize,
    /// Its number among those of the pool.
    in_pool: usize,
}

/// A thread that packs experts, one after the other.
struct Packer {
    /// Dropped to end the thread.
    wanted: Option<mpsc::Sender<Wanted>>,
    packed: mpsc::Receiver<(Wanted, PackedExpert)>,
    under_way: usize,
    thread: Option<JoinHandle<()>>,
}

impl Packer {
    /// Experts that are under way at most: what is missed often will be missed again.
    const MOST_UNDER_WAY: usize = 2;

    fn start(layers: Vec<Experts>) -> std::io::Result<Self> {
        let (wanted, orders) = mpsc::channel::<Wanted>();
        let (give, packed) = mpsc::channel();
        let pack_all = move || {
            for wanted in orders {
                let expert = layers[wanted.layer].pack(wanted.expert);
                if give.send((wanted, expert)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("cuelight-packer".into()).spawn(pack_all)?;
        Ok(Packer { wanted: Some(wanted), packed, under_way: 0, thread: Some(thread) })
    }

    fn has_time(&self) -> bool {
        self.under_way < Self::MOST_UNDER_WAY
    }

    fn pack(&mut self, wanted: Wanted) {
        if self.wanted.as_ref().is_some_and(|orders| orders.send(wanted).is_ok()) {
            self.under_way += 1;
        }
    }

    fn ready(&mut self) -> impl Iterator<Item = (Wanted, PackedExpert)> {
        let under_way = &mut self.under_way;
        self.packed.try_iter().inspect(move |_| *under_way -= 1)
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.wanted = None;
        // It ends after the expert at hand. What it held is free then, and a panic of it was told already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cuelight_shaders::experts::{ExpertMatrix, RouteWeighting};
    use cuelight_shaders::glu::Activation;
    use cuelight_shaders::quant::{Format, random};
    use std::time::{Duration, Instant};

    fn cache(places: usize) -> ExpertCache {
        let layer = |seed| {
            let matrix = |name: &str, outputs: usize, columns| {
                ExpertMatrix::new(random::weight(name, Format::F32, 4 * outputs, columns, seed), 4, None).unwrap()
            };
            let matrices = [matrix("gate", 8, 16), matrix("up", 8, 16), matrix("down", 16, 8)];
            Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap()
        };
        let pool = ExpertPool { piece: 7, places, layers: vec![0, 2] };
        ExpertCache::new(vec![layer(1), layer(2), layer(3)], vec![pool]).unwrap()
    }

    /// Waits until so many experts have arrived.
    fn await_arrivals(cache: &mut ExpertCache, count: usize) -> Vec<Arrival> {
        let (mut arrivals, began) = (Vec::new(), Instant::now());
        while arrivals.len() < count {
            assert!(began.elapsed() < Duration::from_secs(20), "the packer does not answer");
            arrivals.extend(cache.arrivals());
        }
        arrivals
    }

    #[test]
    fn what_is_missed_is_the_hosts_and_comes_and_is_the_devices_from_then_on() {
        let mut cache = cache(3);
        // Two rows, of experts 3 and 1, and of 3 and 0.
        let routes = vec![3.0, 1.0, 0.6, 0.4, 3.0, 0.0, 0.5, 0.5];
        let first = cache.split(2, routes.clone());
        assert_eq!(first, SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 });
        let arrivals = await_arrivals(&mut cache, 2);
        assert!(arrivals.iter().all(|arrival| arrival.piece == 7 && arrival.place < 3));

        let second = cache.split(2, routes.clone());
        assert_eq!(second.host, Some(vec![-1.0, -1.0, 0.6, 0.4, -1.0, 0.0, 0.5, 0.5]));
        let (three, one) = (arrivals[0].place as f32, arrivals[1].place as f32);
        let device = vec![3.0, 1.0, 0.6, 0.4, three, one, 3.0, -1.0, 0.5, 0.5, three, -1.0];
        assert_eq!((second.device, second.device_routes), (Some((7, device)), 3));

        await_arrivals(&mut cache, 1);
        let third = cache.split(2, routes.clone());
        assert_eq!((third.host, third.device_routes), (None, 4), "nothing is left for the host");
        assert_eq!(cache.split(0, routes).device_routes, 0, "another layer's experts are others");
    }

    #[test]
    fn a_layer_without_a_pool_is_all_the_hosts() {
        let mut cache = cache(3);
        let routes = vec![3.0, 1.0, 0.6, 0.4];
        let all = SplitRoutes { host: Some(routes.clone()), device: None, device_routes: 0 };
        assert_eq!(cache.split(1, routes), all);
    }
}
