//! What the bytes of copied KV blocks and recurrent states depend on, in addition to the files of the model.

use std::fmt::{self, Write};

use cuelight_shaders::gpu::module::SOURCES;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::matmul::rounds_to_bfloat16;
use cuelight_shaders::op::Op;

use super::division::Division;
use super::options::LoadOptions;
use super::part::{ModelPart, Target};
use crate::graph::Graph;

/// Describes the content of the cache of a divided model ([`CacheLayout::description`](crate::engine::CacheLayout::description)).
pub(super) fn describe(division: &Division, options: &LoadOptions) -> String {
    let parts = division.parts.iter().map(|part| of_part(part, options));
    let host = division.host.iter().map(|host| format!("{} layers of experts on {}", host.layers.len(), cpu(options)));
    let cache = options.expert_cache_bytes.map(|bytes| format!("expert cache of {bytes} bytes"));
    parts.chain(host).chain(cache).collect::<Vec<_>>().join("; ")
}

/// One part: its device, the type of keys and values, the layers that store them, the values of the recurrent state of each layer
/// that has one, and the ops.
fn of_part(part: &ModelPart, options: &LoadOptions) -> String {
    let device = match &part.target {
        Target::Cpu => cpu(options),
        Target::Vulkan(info, _) => {
            let batches = if options.deterministic { "deterministic" } else { "any batch" };
            format!("{} with {} and shaders {}, {batches}", info.name, info.driver, SOURCES.trim_end())
        }
    };
    let stored: Vec<usize> =
        part.states.iter().enumerate().filter(|(_, state)| state.kv.n_kv_heads > 0).map(|(layer, _)| layer).collect();
    let recurrent =
        |(layer, state): (usize, &LayerState)| (state.recurrent_len > 0).then_some((layer, state.recurrent_len));
    let recurrent: Vec<(usize, usize)> = part.states.iter().enumerate().filter_map(recurrent).collect();
    let recurrent = if recurrent.is_empty() { String::new() } else { format!(", states {recurrent:?}") };
    let mut hash = Fnv::default();
    let host_graph = part.host_ops.iter().map(|ops| &ops.graph);
    host_graph.chain(&part.graphs).flat_map(Graph::ops).for_each(|op| hash.op(op));
    format!("{device}, {}, layers {stored:?}{recurrent}, ops {:016x}", options.kv_type, hash.0)
}

/// The arithmetic of the CPU. The number of threads and the tuning change no result.
fn cpu(options: &LoadOptions) -> String {
    let LoadOptions { kernel, activation_bits, .. } = options;
    let rounding = if rounds_to_bfloat16(*kernel, *activation_bits) { " bfloat16" } else { "" };
    format!("cpu {kernel} {activation_bits:?}{rounding}")
}

/// The FNV-1a hash of the ops of a graph.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// An op with its parameters, its weights by name and format, and its tables, such as the frequencies of positions, which may
    /// depend on settings.
    fn op(&mut self, op: &dyn Op) {
        self.bytes(op.name().as_bytes());
        // Never fails: the hash takes everything.
        let _ = write!(self, " {op:?}");
        for weight in op.weights() {
            let _ = write!(self, " {} {:?}", weight.name, weight.format);
        }
        for value in op.gpu_tables().into_iter().flatten() {
            self.bytes(&value.to_le_bytes());
        }
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cuelight_shaders::attention::{Attention, EachOther, Window};
    use cuelight_shaders::kv::KvShape;
    use cuelight_shaders::scale::Scale;

    use super::*;

    fn hash(op: &dyn Op) -> u64 {
        let mut hash = Fnv::default();
        hash.op(op);
        hash.0
    }

    #[test]
    fn ops_differ_when_one_of_their_numbers_does() {
        let attention = |window, scale| Attention {
            layer: 0,
            stores: true,
            n_heads: 2,
            kv: KvShape::grouped(1, 16),
            scale,
            window,
            sees_later: false,
            each_other: EachOther::All,
            softcap: None,
            sinks: None,
            slopes: None,
            selection: None,
        };
        let plain = hash(&attention(None, 0.25));
        assert_eq!(plain, hash(&attention(None, 0.25)));
        assert_ne!(plain, hash(&attention(None, 0.25_f32.next_up())));
        assert_ne!(plain, hash(&attention(Some(Window::Last(32)), 0.25)));
        assert_ne!(hash(&attention(Some(Window::Last(32)), 0.25)), hash(&attention(Some(Window::Last(33)), 0.25)));
        assert_ne!(hash(&Scale::new(0.5)), hash(&Scale::new(0.25)));
    }
}
