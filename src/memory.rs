//! The memory plan: weights, KV cache and scratch memory compared with the available memory, computed from numbers alone.
//!
//! - [`MemoryBreakdown`]: bytes by what they are used for
//! - [`BlockBytes`], [`WindowNeeds`]: how many blocks fit
//! - [`available`], [`limit`], [`of_program`], [`occupied`]: what the system reports

mod breakdown;
mod kv;
mod system;

use std::fmt;

use crate::cgroup::MemoryLimit;
use crate::engine::BLOCK_TOKENS;

pub use breakdown::{MemoryBreakdown, MemoryPurpose, format_bytes};
pub use kv::{BlockBytes, WindowNeeds};
pub use system::{available, limit, occupied, of_program};

/// The memory that a model uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What it is used for, in all memories together.
    pub used: MemoryBreakdown,
    /// The part of the weights that is mapped from the file. The system can reclaim it.
    pub mapped_bytes: u64,
    /// What the program used when the plan was made: its code, and what it holds for other models.
    pub program_bytes: Option<u64>,
    /// Free memory, if the system reports it.
    pub available_bytes: Option<u64>,
    /// The limit of a control group, where it leaves less memory than the machine has.
    pub limit: Option<MemoryLimit>,
    /// Blocks of the KV cache.
    pub kv_blocks: usize,
    /// Blocks of the layers that keep windows; `None` if they have as many.
    pub window_blocks: Option<usize>,
    /// Slots for recurrent state; 0 for a model without it.
    pub state_slots: usize,
    /// The longest sequence in tokens.
    pub context_tokens: usize,
    /// The memories that it uses: usually one, the host's or a device's.
    pub pools: Vec<Pool>,
    /// Bytes of experts that stay in the file and are read from it when rows use them; not included in the other fields.
    pub in_file_bytes: u64,
}

/// A memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryId {
    /// The host's.
    Host,
    /// That of the device with this name.
    Device(String),
}

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryId::Host => f.pad("host memory"),
            MemoryId::Device(name) => f.pad(name),
        }
    }
}

/// What a model uses of one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The memory.
    pub memory: MemoryId,
    /// What it is used for.
    pub used: MemoryBreakdown,
    /// What a KV block takes of it.
    pub block_bytes: BlockBytes,
    /// Free memory there, if the system reports it.
    pub available_bytes: Option<u64>,
}

impl MemoryPlan {
    /// Bytes of host memory, without the devices' own memories.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.pools.iter().filter(|pool| pool.memory == MemoryId::Host).map(|pool| pool.used.total()).sum()
    }

    /// Combines the plans of one model's memories. All get as many blocks and slots as the smallest plan has.
    ///
    /// # Panics
    /// When `plans` is empty.
    #[must_use]
    pub fn together(plans: Vec<MemoryPlan>) -> MemoryPlan {
        let least = |size: fn(&MemoryPlan) -> usize| plans.iter().map(size).min();
        let kv_blocks = least(|plan| plan.kv_blocks).expect("a model uses at least one memory");
        let context_tokens = least(|plan| plan.context_tokens).unwrap_or(0);
        let state_slots = least(|plan| plan.state_slots).unwrap_or(0);
        let window_blocks =
            plans.iter().filter_map(|plan| plan.window_blocks).min().filter(|blocks| *blocks < kv_blocks);
        let pools = plans.into_iter().flat_map(|MemoryPlan { state_slots: slots, pools, .. }| {
            pools.into_iter().map(move |pool| {
                let kv = pool.block_bytes.of_cache(kv_blocks, window_blocks);
                let state = part_of(pool.used.state, state_slots, slots);
                Pool { used: MemoryBreakdown { kv, state, ..pool.used }, ..pool }
            })
        });
        let pools: Vec<Pool> = pools.collect();
        MemoryPlan { kv_blocks, window_blocks, state_slots, context_tokens, ..MemoryPlan::of_pools(pools) }
    }

    /// The sum of the plans of a model's replicas, for each memory.
    #[must_use]
    pub fn of_replicas<'a>(plans: impl Iterator<Item = &'a MemoryPlan> + Clone) -> MemoryPlan {
        let mut pools: Vec<Pool> = Vec::new();
        for pool in plans.clone().flat_map(|plan| &plan.pools) {
            match pools.iter_mut().find(|other| other.memory == pool.memory) {
                Some(other) => {
                    other.used = other.used + pool.used;
                    other.block_bytes = other.block_bytes + pool.block_bytes;
                    // Each replica was planned with its share of the free memory.
                    other.available_bytes = other.available_bytes.zip(pool.available_bytes).map(|(a, b)| a + b);
                }
                None => pools.push(pool.clone()),
            }
        }
        MemoryPlan {
            kv_blocks: plans.clone().map(|plan| plan.kv_blocks).sum(),
            window_blocks: plans.clone().map(|plan| plan.window_blocks).sum(),
            state_slots: plans.clone().map(|plan| plan.state_slots).sum(),
            context_tokens: plans.clone().map(|plan| plan.context_tokens).min().unwrap_or(0),
            // All replicas read the same file.
            in_file_bytes: plans.clone().map(|plan| plan.in_file_bytes).max().unwrap_or(0),
            mapped_bytes: plans.clone().map(|plan| plan.mapped_bytes).sum(),
            program_bytes: plans.clone().filter_map(|plan| plan.program_bytes).max(),
            limit: plans.clone().find_map(|plan| plan.limit.clone()),
            ..MemoryPlan::of_pools(pools)
        }
    }

    /// The sum of these memories. What is not of one memory is left empty.
    #[must_use]
    pub fn of_pools(pools: Vec<Pool>) -> MemoryPlan {
        MemoryPlan {
            used: pools.iter().map(|pool| pool.used).sum(),
            mapped_bytes: 0,
            program_bytes: None,
            limit: None,
            available_bytes: pools.iter().map(|pool| pool.available_bytes).sum(),
            kv_blocks: 0,
            window_blocks: None,
            state_slots: 0,
            context_tokens: 0,
            pools,
            in_file_bytes: 0,
        }
    }

    /// Bytes in total.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.used.total()
    }

    /// What the table says about a purpose after its bytes.
    fn remark(&self, purpose: MemoryPurpose) -> String {
        match purpose {
            MemoryPurpose::Weights if self.mapped_bytes > 0 => {
                format!("  {} of it mapped from the file", format_bytes(self.mapped_bytes))
            }
            MemoryPurpose::Kv => {
                let (tokens, blocks, context) = (self.kv_blocks * BLOCK_TOKENS, self.kv_blocks, self.context_tokens);
                let windows = self.window_blocks.map(|blocks| format!(", windows in {blocks} blocks"));
                let windows = windows.unwrap_or_default();
                format!("  {tokens} tokens in {blocks} blocks{windows}, context {context}")
            }
            MemoryPurpose::State => format!("  recurrent state of {} sequences and checkpoints", self.state_slots),
            _ => String::new(),
        }
    }
}

/// Purposes that are shown even if they use nothing.
const ALWAYS_SHOWN: [MemoryPurpose; 3] = [MemoryPurpose::Weights, MemoryPurpose::Kv, MemoryPurpose::Scratch];

impl MemoryBreakdown {
    /// The purposes that are shown to people, with their bytes.
    fn shown(&self) -> impl Iterator<Item = (MemoryPurpose, String)> {
        let shown = self.by_purpose().filter(|(purpose, bytes)| *bytes > 0 || ALWAYS_SHOWN.contains(purpose));
        shown.map(|(purpose, bytes)| (purpose, format_bytes(bytes)))
    }

    /// The purposes in one line: "weights 1.0 GiB, KV cache 100.0 MiB, scratch 10.0 MiB".
    #[must_use]
    pub fn in_one_line(&self) -> String {
        self.shown().map(|(purpose, bytes)| format!("{} {bytes}", purpose.title())).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pools[..] {
            [Pool { memory: MemoryId::Device(name), .. }] => writeln!(f, "memory plan of {name}")?,
            _ => writeln!(f, "memory plan")?,
        }
        for (purpose, bytes) in self.used.shown() {
            writeln!(f, "  {:<8} {bytes:>10}{}", purpose.title(), self.remark(purpose))?;
        }
        write!(f, "  total    {:>10}", format_bytes(self.total_bytes()))?;
        if let Some(available) = self.available_bytes {
            write!(f, "  of {} available", format_bytes(available))?;
        }
        if let Some(MemoryLimit { limit_bytes, file, .. }) = &self.limit {
            write!(f, ", by the limit of {} in {}", format_bytes(*limit_bytes), file.display())?;
        }
        if let Some(program) = self.program_bytes {
            let [all, program] = [self.total_bytes() + program, program].map(format_bytes);
            write!(f, "\n  process  {all:>10}  with the {program} that the program itself uses")?;
        }
        if self.in_file_bytes > 0 {
            let bytes = format_bytes(self.in_file_bytes);
            write!(
                f,
                "\n  in file  {bytes:>10}  of experts that stay in the file and are read from it when a token uses them"
            )?;
        }
        for pool in self.pools.iter().filter(|_| self.pools.len() > 1) {
            let total = format_bytes(pool.used.total());
            write!(f, "\n    {total:>10}  in {}: {}", pool.memory, pool.used.in_one_line())?;
        }
        Ok(())
    }
}

/// The bytes of `count` equal units, of which `all` have these bytes.
fn part_of(bytes: u64, count: usize, all: usize) -> u64 {
    bytes / all.max(1) as u64 * count as u64
}

/// What a model requests of one memory.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// What it uses besides the KV cache and recurrent state, which are planned.
    pub fixed: MemoryBreakdown,
    /// Bytes of one KV block, summed over the layers.
    pub block_bytes: BlockBytes,
    /// The windows of layers that keep no more than these; `None` without such layers.
    pub window: Option<WindowNeeds>,
    /// Bytes of the recurrent state of one sequence, summed over the layers.
    pub slot_bytes: u64,
    /// The slots for recurrent state.
    pub slots: StateSlots,
    /// The context length in training, in tokens.
    pub context_train: usize,
    /// The requested context; `None` for that of training, or less if memory is short.
    pub context_tokens: Option<usize>,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// The requested bytes of the KV cache.
    pub kv_bytes: Option<u64>,
    /// Most bytes in total, independent of what is free now. The caller knows what will be freed before the load.
    pub limit_bytes: Option<u64>,
    /// Free bytes.
    pub available_bytes: Option<u64>,
    /// The memory.
    pub memory: MemoryId,
}

/// How many slots for recurrent state a model should get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSlots {
    /// No more than this.
    pub most: usize,
    /// No fewer than this.
    pub least: usize,
}

impl StateSlots {
    /// Slots for checkpoints that a model gets by default, in addition to two for each sequence.
    const CHECKPOINTS: usize = 16;

    /// The slots for steps of `max_sequences` sequences, or as many as fit into `state_bytes`. None for a model without
    /// recurrent state.
    #[must_use]
    pub fn wanted(slot_bytes: u64, max_sequences: usize, state_bytes: Option<u64>) -> Self {
        match (slot_bytes, state_bytes) {
            (0, _) => StateSlots { most: 0, least: 0 },
            (_, None) => StateSlots { most: 2 * max_sequences + Self::CHECKPOINTS, least: 1 },
            (_, Some(bytes)) => {
                let slots = usize::try_from(bytes / slot_bytes).unwrap_or(usize::MAX);
                StateSlots { most: slots, least: slots }
            }
        }
    }
}

/// Why a model does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Not even a short context fits in addition to the weights.
    #[error(
        "the model needs at least {} ({}), but only {} of memory is available",
        format_bytes(needed.total()), needed.in_one_line(), format_bytes(*available_bytes)
    )]
    Memory {
        /// What it needs, with the smallest useful KV cache.
        needed: Box<MemoryBreakdown>,
        /// Bytes that may be used.
        available_bytes: u64,
    },
    /// Not even the state of one sequence fits into the requested memory.
    #[error("the recurrent state of a sequence needs {}, which is more than its memory is limited to", format_bytes(*slot_bytes))]
    StateMemory {
        /// Bytes that it needs.
        slot_bytes: u64,
    },
    /// The requested KV cache cannot hold the requested context.
    #[error(
        "a context of {context_tokens} tokens needs {} of KV cache, but the KV cache is limited to {}",
        format_bytes(*needed_bytes), format_bytes(*kv_bytes)
    )]
    KvMemory {
        /// The context.
        context_tokens: usize,
        /// Bytes that it needs.
        needed_bytes: u64,
        /// Bytes allowed.
        kv_bytes: u64,
    },
}

/// Tokens of the KV cache that each sequence after the first gets by default.
const TOKENS_PER_SEQUENCE: usize = 1024;

/// A shorter context is refused, unless it was requested.
const SHORTEST_CONTEXT: usize = 512;

/// One part in this many of the free memory is left to other programs.
const RESERVE_DIVISOR: u64 = 20;

/// Plans the KV cache into the memory that weights and scratch leave.
///
/// # Errors
/// [`TooLarge`] when it does not fit.
pub fn plan(request: &MemoryRequest) -> Result<MemoryPlan, TooLarge> {
    let blocks = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS);
    let context = request.context_tokens.unwrap_or(request.context_train).max(1);
    let shortest = request.context_tokens.unwrap_or(context.min(SHORTEST_CONTEXT));

    let usable = request.limit_bytes.or(request.available_bytes.map(usable));
    let other_bytes = request.fixed.total();
    let left = usable.map_or(u64::MAX, |usable| usable.saturating_sub(other_bytes));
    let state_left = left.saturating_sub(request.state_bytes(request.slots.least));
    let windows = request.windows_within(request.kv_bytes.unwrap_or(u64::MAX).min(state_left));
    let bytes = |blocks: usize| request.block_bytes.of_cache(blocks, windows);
    let wanted_blocks = match request.kv_bytes {
        Some(kv_bytes) => {
            let allowed = request.block_bytes.blocks_within(kv_bytes, windows);
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
    let least =
        MemoryBreakdown { kv: bytes(least_blocks), state: request.state_bytes(request.slots.least), ..request.fixed };
    let least_bytes = least.kv.saturating_add(least.state);
    if least_bytes > left {
        return Err(TooLarge::Memory { needed: least.into(), available_bytes: usable.unwrap_or(u64::MAX) });
    }
    let state_slots = request.slots_within(left - least_bytes)?;
    let state = request.state_bytes(state_slots);
    let kv_blocks = wanted_blocks.min(request.block_bytes.blocks_within(left - state, windows));
    let window_blocks = windows.filter(|windows| *windows < kv_blocks);
    let pool = Pool {
        memory: request.memory.clone(),
        used: MemoryBreakdown { kv: bytes(kv_blocks), state, ..request.fixed },
        block_bytes: request.block_bytes,
        available_bytes: request.limit_bytes.or(request.available_bytes),
    };
    let context_tokens = context.min(kv_blocks * BLOCK_TOKENS);
    Ok(MemoryPlan { kv_blocks, window_blocks, state_slots, context_tokens, ..MemoryPlan::of_pools(vec![pool]) })
}

impl MemoryRequest {
    /// The blocks of layers that keep windows, if `bytes` are there for the KV cache.
    fn windows_within(&self, bytes: u64) -> Option<usize> {
        let BlockBytes { all, windowed } = self.block_bytes;
        let window = self.window.filter(|_| all > 0 && windowed > 0)?;
        Some(window.blocks_within(bytes, windowed))
    }

    /// Bytes of this many slots.
    fn state_bytes(&self, slots: usize) -> u64 {
        self.slot_bytes.saturating_mul(slots as u64)
    }

    /// The slots if `free` bytes are left after the least that the model needs: more of them take up to half of these bytes.
    fn slots_within(&self, free: u64) -> Result<usize, TooLarge> {
        let StateSlots { most, least } = self.slots;
        match (free / 2).checked_div(self.slot_bytes) {
            None => Ok(most),
            Some(_) if most == 0 => Err(TooLarge::StateMemory { slot_bytes: self.slot_bytes }),
            Some(more) => Ok(least.saturating_add(usize::try_from(more).unwrap_or(usize::MAX)).min(most)),
        }
    }
}

/// The usable part of `available_bytes`; the rest is left to other programs.
#[must_use]
pub fn usable(available_bytes: u64) -> u64 {
    available_bytes - available_bytes / RESERVE_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Weights and scratch memory.
    const FIXED: MemoryBreakdown = MemoryBreakdown {
        weights: 100 * MIB,
        scratch: 10 * MIB,
        kv: 0,
        state: 0,
        tiers: 0,
        text: 0,
        adapters: 0,
        requests: 0,
        draft: 0,
        media: 0,
    };

    fn request() -> MemoryRequest {
        MemoryRequest {
            fixed: FIXED,
            block_bytes: BlockBytes { all: MIB, windowed: 0 },
            window: None,
            slot_bytes: 0,
            slots: StateSlots::wanted(0, 4, None),
            context_train: 4096,
            context_tokens: None,
            max_sequences: 4,
            kv_bytes: None,
            limit_bytes: None,
            available_bytes: Some(2000 * MIB),
            memory: MemoryId::Host,
        }
    }

    #[test]
    fn by_default_the_cache_holds_one_whole_context_and_a_share_per_further_sequence() {
        let plan = plan(&request()).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (256 + 3 * 64, 4096));
        assert_eq!(plan.total_bytes(), (100 + 10 + 448) * MIB);
    }

    #[test]
    fn layers_with_windows_get_blocks_for_windows() {
        let block_bytes = BlockBytes { all: MIB / 4, windowed: 3 * MIB / 4 };
        let window = Some(WindowNeeds { positions: 113, max_sequences: 4, max_batched_tokens: 16 });
        let windowed = MemoryRequest { block_bytes, window, ..request() };
        let roomy = plan(&windowed).unwrap();
        assert_eq!((roomy.kv_blocks, roomy.window_blocks, roomy.used.kv), (448, Some(84), (112 + 63) * MIB));
        assert!(roomy.to_string().contains("7168 tokens in 448 blocks, windows in 84 blocks, context 4096"), "{roomy}");
        let tight = plan(&MemoryRequest { available_bytes: Some(160 * MIB), ..windowed.clone() }).unwrap();
        // 42 MiB are left: 10.5 for the least of 14 blocks, half of the rest for more of them.
        assert_eq!((tight.kv_blocks, tight.window_blocks, tight.context_tokens), (63, Some(35), 1008));
        let of_size = plan(&MemoryRequest { kv_bytes: Some(70 * MIB), ..windowed.clone() }).unwrap();
        assert_eq!((of_size.kv_blocks, of_size.window_blocks), (121, Some(53)));
        let short = plan(&MemoryRequest { context_tokens: Some(64), ..windowed }).unwrap();
        assert_eq!((short.kv_blocks, short.window_blocks), (16, None), "as many as the others");
        let without = MemoryRequest { memory: MemoryId::Device("vulkan:0".to_owned()), ..request() };
        let together = MemoryPlan::together(vec![roomy, plan(&without).unwrap()]);
        assert_eq!((together.window_blocks, together.used.kv), (Some(84), (112 + 63 + 448) * MIB));
    }

    #[test]
    fn a_context_that_was_not_requested_shrinks_to_fit() {
        let plan = plan(&MemoryRequest { available_bytes: Some(200 * MIB), ..request() }).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (80, 1280));
    }

    #[test]
    fn a_requested_context_is_refused_when_it_does_not_fit() {
        let request = MemoryRequest { available_bytes: Some(200 * MIB), context_tokens: Some(4096), ..request() };
        assert_eq!(
            plan(&request).unwrap_err().to_string(),
            "the model needs at least 366.0 MiB (weights 100.0 MiB, KV cache 256.0 MiB, scratch 10.0 MiB), but only \
             190.0 MiB of memory is available"
        );
    }

    #[test]
    fn kv_memory_below_the_context_is_refused_with_the_bytes_it_needs() {
        let request = MemoryRequest { kv_bytes: Some(10 * MIB), context_tokens: Some(1024), ..request() };
        assert_eq!(
            plan(&request).unwrap_err().to_string(),
            "a context of 1024 tokens needs 64.0 MiB of KV cache, but the KV cache is limited to 10.0 MiB"
        );
        let plan = plan(&MemoryRequest { kv_bytes: Some(100 * MIB), ..request }).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (100, 1024));
    }

    #[test]
    fn all_memories_get_the_blocks_of_the_smallest_and_each_is_shown() {
        let card = MemoryRequest {
            available_bytes: Some(300 * MIB),
            memory: MemoryId::Device("vulkan:0".to_owned()),
            ..request()
        };
        let plans = [request(), card].map(|request| plan(&request).unwrap());
        let together = MemoryPlan::together(plans.to_vec());
        assert_eq!((together.kv_blocks, together.context_tokens), (175, 175 * 16));
        assert_eq!((together.total_bytes(), together.host_bytes()), (2 * 285 * MIB, 285 * MIB));
        let shown = together.to_string();
        assert!(shown.contains("285.0 MiB  in vulkan:0: weights 100.0 MiB, KV cache 175.0 MiB"), "{shown}");
        assert!(shown.contains("in host memory"), "{shown}");
    }

    #[test]
    fn recurrent_state_gets_slots_for_sequences_and_checkpoints() {
        let recurrent = |slot_bytes, state_bytes| MemoryRequest {
            slot_bytes,
            slots: StateSlots::wanted(slot_bytes, 4, state_bytes),
            ..request()
        };
        let roomy = plan(&recurrent(MIB, None)).unwrap();
        assert_eq!((roomy.state_slots, roomy.used.state, roomy.kv_blocks), (24, 24 * MIB, 448));
        assert!(roomy.to_string().contains("state      24.0 MiB  recurrent state of 24 sequences"), "{roomy}");
        let tight = plan(&MemoryRequest { available_bytes: Some(220 * MIB), ..recurrent(20 * MIB, None) }).unwrap();
        // 209 MiB are usable: 110 of weights and scratch, at least 32 of cache and 20 of state; half of the rest is state.
        assert_eq!((tight.state_slots, tight.kv_blocks), (2, 59));
        assert_eq!(plan(&recurrent(MIB, Some(10 * MIB))).unwrap().state_slots, 10);
        let error = plan(&recurrent(20 * MIB, Some(10 * MIB))).unwrap_err().to_string();
        assert!(error.contains("needs 20.0 MiB"), "{error}");
    }

    #[test]
    fn memories_without_recurrent_layers_get_as_many_slots() {
        let slots = StateSlots::wanted(10 * MIB, 4, None);
        let with = MemoryRequest { available_bytes: Some(300 * MIB), slot_bytes: 10 * MIB, slots, ..request() };
        let without = MemoryRequest { slots, memory: MemoryId::Device("vulkan:0".to_owned()), ..request() };
        let together = MemoryPlan::together([with, without].map(|request| plan(&request).unwrap()).to_vec());
        assert_eq!((together.state_slots, together.used.state), (7, 70 * MIB));
    }

    #[test]
    fn a_limit_is_used_to_the_byte() {
        let plan = plan(&MemoryRequest { limit_bytes: Some(200 * MIB), ..request() }).unwrap();
        assert_eq!((plan.kv_blocks, plan.total_bytes()), (90, 200 * MIB));
    }

    #[test]
    fn a_draft_model_takes_its_part() {
        let request = MemoryRequest {
            limit_bytes: Some(200 * MIB),
            fixed: MemoryBreakdown { draft: 50 * MIB, ..FIXED },
            ..request()
        };
        let planned = plan(&request).unwrap();
        assert_eq!((planned.kv_blocks, planned.used.draft, planned.total_bytes()), (40, 50 * MIB, 200 * MIB));
        assert!(planned.to_string().contains("  draft      50.0 MiB"), "{planned}");
        let error = plan(&MemoryRequest { fixed: MemoryBreakdown { draft: 150 * MIB, ..FIXED }, ..request })
            .unwrap_err()
            .to_string();
        assert!(error.contains("draft 150.0 MiB"), "{error}");
    }

    #[test]
    fn tokenizer_and_requests_take_their_part() {
        let fixed = MemoryBreakdown { text: 6 * MIB, requests: 4 * MIB, ..FIXED };
        let request = MemoryRequest { limit_bytes: Some(200 * MIB), fixed, ..request() };
        let plan = plan(&request).unwrap();
        assert_eq!((plan.kv_blocks, plan.total_bytes(), plan.host_bytes()), (80, 200 * MIB, 200 * MIB));
        let plan = MemoryPlan { program_bytes: Some(924 * MIB), mapped_bytes: 30 * MIB, ..plan };
        assert_eq!(
            plan.to_string(),
            "memory plan\n  weights   100.0 MiB  30.0 MiB of it mapped from the file\n  KV cache   80.0 MiB  1280 tokens in 80 \
             blocks, context 1280\n  scratch    10.0 MiB\n  text        6.0 MiB\n  requests    4.0 MiB\n  total     200.0 MiB  \
             of 200.0 MiB available\n  process     1.1 GiB  with the 924.0 MiB that the program itself uses"
        );
    }

    #[test]
    fn copies_of_kv_blocks_have_a_name_of_their_own_in_errors() {
        let fixed = MemoryBreakdown { tiers: 300 * MIB, text: MIB, ..FIXED };
        let error = plan(&MemoryRequest { limit_bytes: Some(200 * MIB), fixed, ..request() }).unwrap_err().to_string();
        assert!(error.contains("scratch 10.0 MiB, KV tiers 300.0 MiB, text 1.0 MiB)"), "{error}");
    }

    #[test]
    fn the_limit_of_a_control_group_is_shown_with_its_file() {
        let limit = MemoryLimit { limit_bytes: 512 * MIB, available_bytes: 412 * MIB, file: "memory.max".into() };
        let plan = plan(&MemoryRequest { available_bytes: Some(412 * MIB), ..request() }).unwrap();
        let shown = MemoryPlan { limit: Some(limit), ..plan }.to_string();
        assert!(shown.contains("of 412.0 MiB available, by the limit of 512.0 MiB in memory.max"), "{shown}");
    }

    #[test]
    fn without_a_report_of_free_memory_nothing_is_refused() {
        let fixed = MemoryBreakdown { weights: u64::MAX / 4, ..FIXED };
        assert!(plan(&MemoryRequest { available_bytes: None, fixed, ..request() }).is_ok());
    }
}
