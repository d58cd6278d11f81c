//! A layer's experts on the device for a long prompt, whose rows use nearly all of them: in *passes*, each with the
//! experts that have room at once.
//!
//! While the device computes one pass, the experts of the next are on their way; behind the last pass of a layer come the next
//! layer's, those that it used most lately, before it is known which ones it will need.

use std::collections::{HashMap, VecDeque};

use super::cache::{Chunk, ExpertCache};
use crate::engine::EngineError;

/// What is left to do of a layer.
pub(super) struct Passes {
    layer: usize,
    /// [rows, 2 top_k]
    routes: Vec<f32>,
    /// Experts that are in the cache, and their places there; they are computed in the first pass.
    cached: HashMap<usize, usize>,
    /// What is on its way, or there.
    current: Option<Chunk>,
    rest: VecDeque<Vec<usize>>,
    /// Whose experts come behind these.
    next_layer: Option<usize>,
    /// The first of those.
    ahead: Option<Chunk>,
    /// Routes to experts in the cache, and to others.
    pub cached_routes: usize,
    pub streamed_routes: usize,
}

impl Passes {
    /// The passes of a layer for the rows of these routes, with what was sent for ahead. There must be places for prompts.
    pub fn begin(
        cache: &mut ExpertCache,
        (layer, routes): (usize, Vec<f32>),
        next_layer: Option<usize>,
        ahead: Option<Chunk>,
    ) -> Result<Self, EngineError> {
        let (cached, mut missing) = cache.find(layer, &routes);
        let cached_routes = cache.routes_to(layer, &routes, &cached);
        let streamed_routes = routes.len() / 2 - cached_routes;
        let mut current = None;
        match ahead {
            Some(chunk) if chunk.layer == layer => {
                missing.retain(|expert| !chunk.experts.contains(expert));
                current = Some(chunk);
            }
            // Its places are free when all of it is there.
            Some(chunk) => cache.await_chunk(&chunk)?,
            None => {}
        }
        let places = cache.places_of_half(layer).unwrap_or(1);
        let rest = missing.chunks(places).map(<[usize]>::to_vec).collect();
        let mut passes =
            Passes { layer, routes, cached, current, rest, next_layer, ahead: None, cached_routes, streamed_routes };
        if passes.current.is_none() {
            passes.send_for_next(cache);
        }
        Ok(passes)
    }

    /// The next pass: the piece to run and its routes [rows, 3 top_k]; `None` behind the last. What was computed with the
    /// pass before must be done.
    pub fn next(&mut self, cache: &mut ExpertCache) -> Result<Option<(usize, Vec<f32>)>, EngineError> {
        loop {
            let chunk = self.current.take();
            if chunk.is_none() && self.cached.is_empty() {
                return Ok(None);
            }
            let mut places = std::mem::take(&mut self.cached);
            if let Some(chunk) = &chunk {
                self.send_for_next(cache);
                cache.await_chunk(chunk)?;
                places.extend(chunk.places());
            }
            if let Some(pass) = cache.pass(self.layer, &self.routes, &places) {
                return Ok(Some(pass));
            }
        }
    }

    /// What was sent for of the next layer.
    pub fn ahead(self) -> Option<Chunk> {
        self.ahead
    }

    fn send_for_next(&mut self, cache: &mut ExpertCache) {
        match self.rest.pop_front() {
            Some(experts) => self.current = cache.send_for(self.layer, experts),
            None => self.ahead = self.next_layer.take().and_then(|layer| cache.send_for_likely(layer)),
        }
    }
}
