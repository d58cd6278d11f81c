//! The memory plan: weights, KV cache and scratch against what the machine has, from numbers alone.

use std::fmt;

use crate::engine::BLOCK_TOKENS;

/// What a model takes of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Mapped from the file.
    pub weights_bytes: u64,
    /// The paged KV cache.
    pub kv_bytes: u64,
    /// Activations and logits of the largest step.
    pub scratch_bytes: u64,
    /// What the machine has free, where the system says.
    pub available_bytes: Option<u64>,
    /// Blocks in the KV cache.
    pub kv_blocks: usize,
    /// Longest sequence.
    pub context_tokens: usize,
    /// The memories that it is in: most often one, the machine's or a device's own.
    pub pools: Vec<Pool>,
    /// Bytes of experts beside all this, which stay in the file and are read from there as rows use them.
    pub in_file_bytes: u64,
}

/// What a model takes of one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The device whose memory it is; `None` for the machine's.
    pub device: Option<String>,
    /// Weights of the layers that are computed there.
    pub weights_bytes: u64,
    /// Their KV cache.
    pub kv_bytes: u64,
    /// Their activations.
    pub scratch_bytes: u64,
    /// What is free there, where the system says.
    pub available_bytes: Option<u64>,
}

impl Pool {
    /// Bytes in all.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.scratch_bytes
    }
}

impl MemoryPlan {
    /// Bytes of the machine's memory: none of what lives in devices' own.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.pools.iter().filter(|pool| pool.device.is_none()).map(Pool::total_bytes).sum()
    }

    /// The plan of a model that lives in several memories, each planned by itself, with the bytes of a KV block there: all
    /// have as many blocks as the smallest has.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn together(plans: Vec<(MemoryPlan, u64)>) -> MemoryPlan {
        let least = |size: fn(&MemoryPlan) -> usize| plans.iter().map(|(plan, _)| size(plan)).min();
        let kv_blocks = least(|plan| plan.kv_blocks).expect("a model is in some memory");
        let context_tokens = least(|plan| plan.context_tokens).unwrap_or(0);
        let pools = plans.into_iter().flat_map(|(plan, block_bytes)| {
            let of_blocks = block_bytes.saturating_mul(kv_blocks as u64);
            plan.pools.into_iter().map(move |pool| Pool { kv_bytes: of_blocks, ..pool })
        });
        let pools: Vec<Pool> = pools.collect();
        MemoryPlan { kv_blocks, context_tokens, ..MemoryPlan::of_pools(pools) }
    }

    /// The plan of all replicas of a model, each of which has one of its own: what they take together of each memory.
    #[must_use]
    pub fn of_replicas<'a>(plans: impl Iterator<Item = &'a MemoryPlan> + Clone) -> MemoryPlan {
        let mut pools: Vec<Pool> = Vec::new();
        for pool in plans.clone().flat_map(|plan| &plan.pools) {
            match pools.iter_mut().find(|other| other.device == pool.device) {
                Some(other) => {
                    other.weights_bytes += pool.weights_bytes;
                    other.kv_bytes += pool.kv_bytes;
                    other.scratch_bytes += pool.scratch_bytes;
                    // Each was planned into a share of it.
                    other.available_bytes = other.available_bytes.zip(pool.available_bytes).map(|(a, b)| a + b);
                }
                None => pools.push(pool.clone()),
            }
        }
        MemoryPlan {
            kv_blocks: plans.clone().map(|plan| plan.kv_blocks).sum(),
            context_tokens: plans.clone().map(|plan| plan.context_tokens).min().unwrap_or(0),
            // One file serves all of them.
            in_file_bytes: plans.map(|plan| plan.in_file_bytes).max().unwrap_or(0),
            ..MemoryPlan::of_pools(pools)
        }
    }

    /// What these take together, without a word of what they are enough for.
    fn of_pools(pools: Vec<Pool>) -> MemoryPlan {
        let sum = |bytes: fn(&Pool) -> u64| pools.iter().map(bytes).sum();
        MemoryPlan {
            weights_bytes: sum(|pool| pool.weights_bytes),
            kv_bytes: sum(|pool| pool.kv_bytes),
            scratch_bytes: sum(|pool| pool.scratch_bytes),
            available_bytes: pools.iter().map(|pool| pool.available_bytes).sum(),
            kv_blocks: 0,
            context_tokens: 0,
            pools,
            in_file_bytes: 0,
        }
    }

    /// Bytes in all.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.scratch_bytes
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kv_tokens = self.kv_blocks * BLOCK_TOKENS;
        match &self.pools[..] {
            [Pool { device: Some(device), .. }] => writeln!(f, "memory plan of {device}")?,
            _ => writeln!(f, "memory plan")?,
        }
        writeln!(f, "  weights  {:>10}", format_bytes(self.weights_bytes))?;
        writeln!(
            f,
            "  KV cache {:>10}  {kv_tokens} tokens in {} blocks, context {}",
            format_bytes(self.kv_bytes),
            self.kv_blocks,
            self.context_tokens
        )?;
        writeln!(f, "  scratch  {:>10}", format_bytes(self.scratch_bytes))?;
        write!(f, "  total    {:>10}", format_bytes(self.total_bytes()))?;
        if let Some(available) = self.available_bytes {
            write!(f, "  of {} available", format_bytes(available))?;
        }
        if self.in_file_bytes > 0 {
            let bytes = format_bytes(self.in_file_bytes);
            write!(
                f,
                "\n  beside   {bytes:>10}  of experts that stay in the file, and are read from it when a token uses them"
            )?;
        }
        for pool in self.pools.iter().filter(|_| self.pools.len() > 1) {
            let bytes = [pool.total_bytes(), pool.weights_bytes, pool.kv_bytes, pool.scratch_bytes].map(format_bytes);
            let [total, weights, kv, scratch] = &bytes;
            let place = pool.device.as_deref().unwrap_or("the machine");
            write!(f, "\n    {total:>10}  in {place}: weights {weights}, KV cache {kv}, scratch {scratch}")?;
        }
        Ok(())
    }
}

/// `1.5 GiB`, `97.3 MiB`: three digits or so, for people.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// What is asked of the machine.
#[derive(Debug, Clone)]
pub struct Request {
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Bytes of activations and logits.
    pub scratch_bytes: u64,
    /// Bytes of one KV block over all layers.
    pub block_bytes: u64,
    /// The context the model was trained with.
    pub context_train: usize,
    /// The context asked for; `None`: the trained one, or less when memory is short.
    pub context_tokens: Option<usize>,
    /// Most sequences at once.
    pub max_sequences: usize,
    /// Bytes asked for the KV cache.
    pub kv_bytes: Option<u64>,
    /// Bytes that it may take in all, whatever is free now: whoever says so knows what will be.
    pub limit_bytes: Option<u64>,
    /// Bytes free.
    pub available_bytes: Option<u64>,
    /// The device whose memory it is; `None` for the machine's.
    pub own_memory: Option<String>,
}

/// Why the plan does not fit: the numbers, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Not even a short context fits beside the weights.
    #[error(
        "the model takes {} (weights {}, KV cache at least {}, scratch {}), but only {} of memory is available; a smaller \
         quantisation, a smaller --ctx-size or --max-batched-tokens would help",
        format_bytes(weights_bytes + kv_bytes + scratch_bytes), format_bytes(*weights_bytes), format_bytes(*kv_bytes),
        format_bytes(*scratch_bytes), format_bytes(*available_bytes)
    )]
    Memory {
        /// Bytes of the weights.
        weights_bytes: u64,
        /// Bytes of the smallest KV cache that would do.
        kv_bytes: u64,
        /// Bytes of scratch.
        scratch_bytes: u64,
        /// Bytes that may be used.
        available_bytes: u64,
    },
    /// The KV memory asked for does not hold the context asked for.
    #[error(
        "a context of {context_tokens} tokens takes {} of KV cache, but --kv-memory allows {}; raise it, or lower --ctx-size",
        format_bytes(*needed_bytes), format_bytes(*kv_bytes)
    )]
    KvMemory {
        /// The context.
        context_tokens: usize,
        /// Bytes it takes.
        needed_bytes: u64,
        /// Bytes allowed.
        kv_bytes: u64,
    },
}

/// Each further sequence gets at least this much of the cache by default.
const TOKENS_PER_SEQUENCE: usize = 1024;

/// A context below this is not worth starting for, unless it was asked for.
const SHORTEST_CONTEXT: usize = 512;

/// Part of the free memory that is left to others.
const RESERVE_DIVISOR: u64 = 20;

/// Plans the KV cache into what is left beside weights and scratch.
///
/// # Errors
/// [`TooLarge`] when it does not fit.
pub fn plan(request: &Request) -> Result<MemoryPlan, TooLarge> {
    let blocks = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS);
    let bytes = |blocks: usize| request.block_bytes.saturating_mul(blocks as u64);
    let context = request.context_tokens.unwrap_or(request.context_train).max(1);
    let shortest = request.context_tokens.unwrap_or(context.min(SHORTEST_CONTEXT));

    let usable = request.limit_bytes.or(request.available_bytes.map(usable));
    let room = usable.map_or(u64::MAX, |usable| usable.saturating_sub(request.weights_bytes + request.scratch_bytes));
    let wanted_blocks = match request.kv_bytes {
        Some(kv_bytes) => {
            let allowed = usize::try_from(kv_bytes / request.block_bytes.max(1)).unwrap_or(usize::MAX);
            if allowed < blocks(shortest) {
                return Err(TooLarge::KvMemory {
                    context_tokens: shortest,
                    needed_bytes: bytes(blocks(shortest)),
                    kv_bytes,
                });
            }
            allowed
        }
        None => {
            let others = request.max_sequences.saturating_sub(1);
            blocks(context) + others.saturating_mul(blocks(context.min(TOKENS_PER_SEQUENCE)))
        }
    };
    let least_blocks = if request.kv_bytes.is_some() { wanted_blocks } else { blocks(shortest) };
    if bytes(least_blocks) > room {
        return Err(TooLarge::Memory {
            weights_bytes: request.weights_bytes,
            kv_bytes: bytes(least_blocks),
            scratch_bytes: request.scratch_bytes,
            available_bytes: usable.unwrap_or(u64::MAX),
        });
    }
    let fitting = usize::try_from(room / request.block_bytes.max(1)).unwrap_or(usize::MAX);
    let kv_blocks = wanted_blocks.min(fitting);
    Ok(MemoryPlan {
        weights_bytes: request.weights_bytes,
        kv_bytes: bytes(kv_blocks),
        scratch_bytes: request.scratch_bytes,
        available_bytes: request.limit_bytes.or(request.available_bytes),
        kv_blocks,
        context_tokens: context.min(kv_blocks * BLOCK_TOKENS),
        pools: vec![Pool {
            device: request.own_memory.clone(),
            weights_bytes: request.weights_bytes,
            kv_bytes: bytes(kv_blocks),
            scratch_bytes: request.scratch_bytes,
            available_bytes: request.limit_bytes.or(request.available_bytes),
        }],
        in_file_bytes: 0,
    })
}

/// Whether weights alone fit.
///
/// # Errors
/// [`TooLarge::Memory`] when they do not.
pub fn check(weights_bytes: u64, available_bytes: Option<u64>) -> Result<(), TooLarge> {
    match available_bytes.map(usable) {
        Some(available_bytes) if weights_bytes > available_bytes => {
            Err(TooLarge::Memory { weights_bytes, kv_bytes: 0, scratch_bytes: 0, available_bytes })
        }
        _ => Ok(()),
    }
}

/// What may be used of `available_bytes`: a part is left to others.
#[must_use]
pub fn usable(available_bytes: u64) -> u64 {
    available_bytes - available_bytes / RESERVE_DIVISOR
}

/// Memory that the system could give to a new program without swapping; `None` where it does not say.
#[must_use]
pub fn available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kibibytes(line)
}

/// Memory of this process that [`available`] no longer counts: pages that it wrote to. Weights mapped from a file are not
/// among them, the system could take those back. `None` where the system does not say.
#[must_use]
pub fn occupied() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kibibytes(status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?)
}

/// `"  12 kB"` in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request() -> Request {
        Request {
            weights_bytes: 100 * MIB,
            scratch_bytes: 10 * MIB,
            block_bytes: MIB,
            context_train: 4096,
            context_tokens: None,
            max_sequences: 4,
            kv_bytes: None,
            limit_bytes: None,
            available_bytes: Some(2000 * MIB),
            own_memory: None,
        }
    }

    #[test]
    fn by_default_one_whole_context_and_something_for_each_other_sequence() {
        let plan = plan(&request()).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (256 + 3 * 64, 4096));
        assert_eq!(plan.total_bytes(), (100 + 10 + 448) * MIB);
    }

    #[test]
    fn a_context_nobody_asked_for_shrinks_to_what_fits() {
        let plan = plan(&Request { available_bytes: Some(200 * MIB), ..request() }).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (80, 1280));
    }

    #[test]
    fn a_context_that_was_asked_for_is_refused_when_it_does_not_fit() {
        let request = Request { available_bytes: Some(200 * MIB), context_tokens: Some(4096), ..request() };
        assert_eq!(
            plan(&request).unwrap_err().to_string(),
            "the model takes 366.0 MiB (weights 100.0 MiB, KV cache at least 256.0 MiB, scratch 10.0 MiB), but only \
             190.0 MiB of memory is available; a smaller quantisation, a smaller --ctx-size or --max-batched-tokens \
             would help"
        );
    }

    #[test]
    fn kv_memory_below_the_context_is_refused_with_the_number_it_takes() {
        let request = Request { kv_bytes: Some(10 * MIB), context_tokens: Some(1024), ..request() };
        assert_eq!(
            plan(&request).unwrap_err().to_string(),
            "a context of 1024 tokens takes 64.0 MiB of KV cache, but --kv-memory allows 10.0 MiB; raise it, or lower \
             --ctx-size"
        );
        let plan = plan(&Request { kv_bytes: Some(100 * MIB), ..request }).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (100, 1024));
    }

    #[test]
    fn memories_have_as_many_blocks_as_the_smallest_and_tell_what_each_holds() {
        let card = Request { available_bytes: Some(300 * MIB), own_memory: Some("vulkan:0".to_owned()), ..request() };
        let plans = [(request(), MIB), (card, MIB)].map(|(request, block)| (plan(&request).unwrap(), block));
        let together = MemoryPlan::together(plans.to_vec());
        assert_eq!((together.kv_blocks, together.context_tokens), (175, 175 * 16));
        assert_eq!((together.total_bytes(), together.host_bytes()), (2 * 285 * MIB, 285 * MIB));
        let shown = together.to_string();
        assert!(shown.contains("285.0 MiB  in vulkan:0: weights 100.0 MiB, KV cache 175.0 MiB"), "{shown}");
        assert!(shown.contains("in the machine"), "{shown}");
    }

    #[test]
    fn a_limit_holds_to_the_byte() {
        let plan = plan(&Request { limit_bytes: Some(200 * MIB), ..request() }).unwrap();
        assert_eq!((plan.kv_blocks, plan.total_bytes()), (90, 200 * MIB));
    }

    #[test]
    fn without_numbers_from_the_system_nothing_is_refused() {
        assert!(plan(&Request { available_bytes: None, weights_bytes: u64::MAX / 4, ..request() }).is_ok());
    }
}
