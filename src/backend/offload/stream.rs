//! Streams a layer's experts through the device for a long prompt, whose rows use nearly all of them. The layer is computed in
//! *passes*, each with as many experts as the pool holds at once.
//!
//! While the device computes one pass, the experts of the next are uploaded. During the last pass of a layer, experts of the
//! next layer are prefetched: those used most recently, before the routes of that layer are known.

use std::collections::{HashMap, VecDeque};

use super::cache::{Chunk, ExpertCache};
use crate::engine::EngineError;

/// The remaining passes of a layer.
pub(super) struct Passes {
    layer: usize,
    /// [rows, 2 top_k]
    routes: Vec<f32>,
    /// Experts in the cache and their slots. They are computed in the first pass.
    cached: HashMap<usize, usize>,
    /// The chunk that is being uploaded or has arrived.
    current: Option<Chunk>,
    /// The experts of the later passes.
    rest: VecDeque<Vec<usize>>,
    /// The layer to prefetch after this one.
    next_layer: Option<usize>,
    /// The prefetched chunk of that layer.
    prefetched: Option<Chunk>,
    /// Number of routes to experts in the cache, and to others.
    pub cached_routes: usize,
    pub streamed_routes: usize,
}

impl Passes {
    /// The passes of a layer for rows with these routes. `prefetched` is the chunk that was uploaded in advance. The pool must have
    /// stream slots.
    pub fn begin(
        cache: &mut ExpertCache,
        (layer, routes): (usize, Vec<f32>),
        next_layer: Option<usize>,
        prefetched: Option<Chunk>,
    ) -> Result<Self, EngineError> {
        let (cached, mut missing) = cache.find(layer, &routes);
        let cached_routes = cache.routes_to(layer, &routes, &cached);
        let streamed_routes = routes.len() / 2 - cached_routes;
        let mut current = None;
        match prefetched {
            Some(chunk) if chunk.layer == layer => {
                missing.retain(|expert| !chunk.experts.contains(expert));
                current = Some(chunk);
            }
            // Its slots are free for reuse only when the upload has completed.
            Some(chunk) => cache.await_chunk(&chunk)?,
            None => {}
        }
        let slots = cache.slots_of_half(layer).unwrap_or(1);
        let rest = missing.chunks(slots).map(<[usize]>::to_vec).collect();
        let mut passes = Passes {
            layer,
            routes,
            cached,
            current,
            rest,
            next_layer,
            prefetched: None,
            cached_routes,
            streamed_routes,
        };
        if passes.current.is_none() {
            passes.upload_next(cache);
        }
        Ok(passes)
    }

    /// The next pass: the segment to run and its routes [rows, 3 top_k]; `None` after the last. The computation of the previous
    /// pass must have completed.
    pub fn next(&mut self, cache: &mut ExpertCache) -> Result<Option<(usize, Vec<f32>)>, EngineError> {
        loop {
            let chunk = self.current.take();
            if chunk.is_none() && self.cached.is_empty() {
                return Ok(None);
            }
            let mut slots = std::mem::take(&mut self.cached);
            if let Some(chunk) = &chunk {
                self.upload_next(cache);
                cache.await_chunk(chunk)?;
                slots.extend(chunk.slots());
            }
            if let Some(pass) = cache.pass(self.layer, &self.routes, &slots) {
                return Ok(Some(pass));
            }
        }
    }

    /// The chunk that was prefetched for the next layer.
    pub fn prefetched(self) -> Option<Chunk> {
        self.prefetched
    }

    fn upload_next(&mut self, cache: &mut ExpertCache) {
        match self.rest.pop_front() {
            Some(experts) => self.current = cache.upload_chunk(self.layer, experts),
            None => self.prefetched = self.next_layer.take().and_then(|layer| cache.prefetch(layer)),
        }
    }
}
