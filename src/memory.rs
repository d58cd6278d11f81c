//! The memory plan: weights, KV cache and scratch memory compared with the available memory, computed from numbers alone.

use std::fmt;
use std::path::Path;

use crate::cgroup::{self, MemoryLimit};
use crate::engine::BLOCK_TOKENS;

/// The memory that a model uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, mapped from the file or copied.
    pub weights_bytes: u64,
    /// The part of the weights that is mapped from the file. The system can reclaim it.
    pub mapped_bytes: u64,
    /// The KV cache.
    pub kv_bytes: u64,
    /// The recurrent state of sequences, and its checkpoints.
    pub state_bytes: u64,
    /// Activations and logits of the largest step.
    pub scratch_bytes: u64,
    /// The tokenizer.
    pub text_bytes: u64,
    /// Adapters.
    pub adapter_bytes: u64,
    /// The texts and results of requests.
    pub request_bytes: u64,
    /// Copies of KV blocks in host memory.
    pub tier_bytes: u64,
    /// The draft model, whole.
    pub draft_bytes: u64,
    /// What the program used when the plan was made: its code, and what it holds for other models.
    pub program_bytes: Option<u64>,
    /// Free memory, if the system reports it.
    pub available_bytes: Option<u64>,
    /// The limit of a control group, where it leaves less memory than the machine has.
    pub limit: Option<MemoryLimit>,
    /// Blocks of the KV cache.
    pub kv_blocks: usize,
    /// Slots for recurrent state; 0 for a model without it.
    pub state_slots: usize,
    /// The longest sequence in tokens.
    pub context_tokens: usize,
    /// The memories that it uses: usually one, the host's or a device's.
    pub pools: Vec<Pool>,
    /// Bytes of experts that stay in the file and are read from it when rows use them; not included in the other fields.
    pub in_file_bytes: u64,
}

/// What a model uses of one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The device; `None` for the host's memory.
    pub device: Option<String>,
    /// Weights of the layers on this device.
    pub weights_bytes: u64,
    /// The KV cache of these layers.
    pub kv_bytes: u64,
    /// The recurrent state of these layers.
    pub state_bytes: u64,
    /// Activations and logits of these layers.
    pub scratch_bytes: u64,
    /// The tokenizer.
    pub text_bytes: u64,
    /// Adapters.
    pub adapter_bytes: u64,
    /// The texts and results of requests.
    pub request_bytes: u64,
    /// Copies of KV blocks in host memory.
    pub tier_bytes: u64,
    /// The draft model, whole.
    pub draft_bytes: u64,
    /// Free memory there, if the system reports it.
    pub available_bytes: Option<u64>,
}

impl Pool {
    /// Bytes in total.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes
            + self.kv_bytes
            + self.state_bytes
            + self.scratch_bytes
            + self.text_bytes
            + self.adapter_bytes
            + self.request_bytes
            + self.tier_bytes
            + self.draft_bytes
    }
}

impl MemoryPlan {
    /// Bytes of host memory, without the devices' own memories.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.pools.iter().filter(|pool| pool.device.is_none()).map(Pool::total_bytes).sum()
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
        let pools =
            plans.into_iter().flat_map(|MemoryPlan { kv_blocks: blocks, state_slots: slots, pools, .. }| {
                pools.into_iter().map(move |pool| Pool {
                    kv_bytes: part_of(pool.kv_bytes, kv_blocks, blocks),
                    state_bytes: part_of(pool.state_bytes, state_slots, slots),
                    ..pool
                })
            });
        let pools: Vec<Pool> = pools.collect();
        MemoryPlan { kv_blocks, state_slots, context_tokens, ..MemoryPlan::of_pools(pools) }
    }

    /// The sum of the plans of a model's replicas, for each memory.
    #[must_use]
    pub fn of_replicas<'a>(plans: impl Iterator<Item = &'a MemoryPlan> + Clone) -> MemoryPlan {
        let mut pools: Vec<Pool> = Vec::new();
        for pool in plans.clone().flat_map(|plan| &plan.pools) {
            match pools.iter_mut().find(|other| other.device == pool.device) {
                Some(other) => {
                    other.weights_bytes += pool.weights_bytes;
                    other.kv_bytes += pool.kv_bytes;
                    other.state_bytes += pool.state_bytes;
                    other.scratch_bytes += pool.scratch_bytes;
                    other.text_bytes += pool.text_bytes;
                    other.adapter_bytes += pool.adapter_bytes;
                    other.request_bytes += pool.request_bytes;
                    other.tier_bytes += pool.tier_bytes;
                    other.draft_bytes += pool.draft_bytes;
                    // Each replica was planned with its share of the free memory.
                    other.available_bytes = other.available_bytes.zip(pool.available_bytes).map(|(a, b)| a + b);
                }
                None => pools.push(pool.clone()),
            }
        }
        MemoryPlan {
            kv_blocks: plans.clone().map(|plan| plan.kv_blocks).sum(),
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
        let sum = |bytes: fn(&Pool) -> u64| pools.iter().map(bytes).sum();
        MemoryPlan {
            weights_bytes: sum(|pool| pool.weights_bytes),
            kv_bytes: sum(|pool| pool.kv_bytes),
            state_bytes: sum(|pool| pool.state_bytes),
            scratch_bytes: sum(|pool| pool.scratch_bytes),
            text_bytes: sum(|pool| pool.text_bytes),
            adapter_bytes: sum(|pool| pool.adapter_bytes),
            request_bytes: sum(|pool| pool.request_bytes),
            tier_bytes: sum(|pool| pool.tier_bytes),
            draft_bytes: sum(|pool| pool.draft_bytes),
            mapped_bytes: 0,
            program_bytes: None,
            limit: None,
            available_bytes: pools.iter().map(|pool| pool.available_bytes).sum(),
            kv_blocks: 0,
            state_slots: 0,
            context_tokens: 0,
            pools,
            in_file_bytes: 0,
        }
    }

    /// Bytes in total.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes
            + self.kv_bytes
            + self.state_bytes
            + self.scratch_bytes
            + self.text_bytes
            + self.adapter_bytes
            + self.request_bytes
            + self.tier_bytes
            + self.draft_bytes
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kv_tokens = self.kv_blocks * BLOCK_TOKENS;
        match &self.pools[..] {
            [Pool { device: Some(device), .. }] => writeln!(f, "memory plan of {device}")?,
            _ => writeln!(f, "memory plan")?,
        }
        write!(f, "  weights  {:>10}", format_bytes(self.weights_bytes))?;
        match self.mapped_bytes {
            0 => writeln!(f)?,
            bytes => writeln!(f, "  {} of it mapped from the file", format_bytes(bytes))?,
        }
        writeln!(
            f,
            "  KV cache {:>10}  {kv_tokens} tokens in {} blocks, context {}",
            format_bytes(self.kv_bytes),
            self.kv_blocks,
            self.context_tokens
        )?;
        if self.state_bytes > 0 {
            let (bytes, slots) = (format_bytes(self.state_bytes), self.state_slots);
            writeln!(f, "  state    {bytes:>10}  recurrent state of {slots} sequences and checkpoints")?;
        }
        writeln!(f, "  scratch  {:>10}", format_bytes(self.scratch_bytes))?;
        let others = [
            ("KV tiers", self.tier_bytes),
            ("text    ", self.text_bytes),
            ("adapters", self.adapter_bytes),
            ("requests", self.request_bytes),
            ("draft   ", self.draft_bytes),
        ];
        for (name, bytes) in others {
            if bytes > 0 {
                writeln!(f, "  {name} {:>10}", format_bytes(bytes))?;
            }
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
            let bytes = [pool.total_bytes(), pool.weights_bytes, pool.kv_bytes, pool.scratch_bytes].map(format_bytes);
            let [total, weights, kv, scratch] = &bytes;
            let memory = pool.device.as_deref().unwrap_or("host memory");
            write!(f, "\n    {total:>10}  in {memory}: weights {weights}, KV cache {kv}, scratch {scratch}")?;
            let others = [
                ("state", pool.state_bytes),
                ("text", pool.text_bytes),
                ("adapters", pool.adapter_bytes),
                ("requests", pool.request_bytes),
                ("KV tiers", pool.tier_bytes),
                ("draft model", pool.draft_bytes),
            ];
            for (name, bytes) in others {
                if bytes > 0 {
                    write!(f, ", {name} {}", format_bytes(bytes))?;
                }
            }
        }
        Ok(())
    }
}

/// The bytes of `count` equal units, of which `all` have these bytes.
fn part_of(bytes: u64, count: usize, all: usize) -> u64 {
    bytes / all.max(1) as u64 * count as u64
}

/// Bytes for people, with one decimal: `1.5 GiB`, `97.3 MiB`.
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

/// What a model requests of one memory.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Bytes of activations and logits.
    pub scratch_bytes: u64,
    /// Bytes of the tokenizer, in host memory.
    pub text_bytes: u64,
    /// Bytes of adapters.
    pub adapter_bytes: u64,
    /// Bytes of the texts and results of requests, in host memory.
    pub request_bytes: u64,
    /// Bytes for copies of KV blocks, in host memory.
    pub tier_bytes: u64,
    /// Bytes of the draft model.
    pub draft_bytes: u64,
    /// Bytes of one KV block, summed over the layers.
    pub block_bytes: u64,
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
    /// The device; `None` for the host's memory.
    pub own_memory: Option<String>,
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
        "the model needs {} (weights {}, KV cache at least {}, scratch {}{}{}), but only {} of memory is available",
        format_bytes(weights_bytes + kv_bytes + scratch_bytes + text_bytes + draft_bytes), format_bytes(*weights_bytes),
        format_bytes(*kv_bytes), format_bytes(*scratch_bytes), and("text", *text_bytes), and("draft model", *draft_bytes),
        format_bytes(*available_bytes)
    )]
    Memory {
        /// Bytes of the weights.
        weights_bytes: u64,
        /// Bytes of the smallest useful KV cache.
        kv_bytes: u64,
        /// Bytes of scratch.
        scratch_bytes: u64,
        /// Bytes of the tokenizer, of adapters, of requests and of copies of KV blocks.
        text_bytes: u64,
        /// Bytes of the draft model.
        draft_bytes: u64,
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

/// The part of the message about something that not every model has.
fn and(name: &str, bytes: u64) -> String {
    if bytes > 0 { format!(", {name} {}", format_bytes(bytes)) } else { String::new() }
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
    let bytes = |blocks: usize| request.block_bytes.saturating_mul(blocks as u64);
    let context = request.context_tokens.unwrap_or(request.context_train).max(1);
    let shortest = request.context_tokens.unwrap_or(context.min(SHORTEST_CONTEXT));

    let usable = request.limit_bytes.or(request.available_bytes.map(usable));
    let text_bytes = request.text_bytes + request.adapter_bytes + request.request_bytes + request.tier_bytes;
    let draft_bytes = request.draft_bytes;
    let other_bytes = request.weights_bytes + request.scratch_bytes + text_bytes + draft_bytes;
    let left = usable.map_or(u64::MAX, |usable| usable.saturating_sub(other_bytes));
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
    let least_bytes = bytes(least_blocks).saturating_add(request.state_bytes(request.slots.least));
    if least_bytes > left {
        return Err(TooLarge::Memory {
            weights_bytes: request.weights_bytes,
            kv_bytes: least_bytes,
            scratch_bytes: request.scratch_bytes,
            text_bytes,
            draft_bytes,
            available_bytes: usable.unwrap_or(u64::MAX),
        });
    }
    let state_slots = request.slots_within(left - least_bytes)?;
    let state_bytes = request.state_bytes(state_slots);
    let fitting = usize::try_from((left - state_bytes) / request.block_bytes.max(1)).unwrap_or(usize::MAX);
    let kv_blocks = wanted_blocks.min(fitting);
    let pool = Pool {
        device: request.own_memory.clone(),
        weights_bytes: request.weights_bytes,
        kv_bytes: bytes(kv_blocks),
        state_bytes,
        scratch_bytes: request.scratch_bytes,
        text_bytes: request.text_bytes,
        adapter_bytes: request.adapter_bytes,
        request_bytes: request.request_bytes,
        tier_bytes: request.tier_bytes,
        draft_bytes,
        available_bytes: request.limit_bytes.or(request.available_bytes),
    };
    let context_tokens = context.min(kv_blocks * BLOCK_TOKENS);
    Ok(MemoryPlan { kv_blocks, state_slots, context_tokens, ..MemoryPlan::of_pools(vec![pool]) })
}

impl MemoryRequest {
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

/// Memory that the system can give to a new program without swapping, within the limits of this process's control groups;
/// `None` if neither is reported.
#[must_use]
pub fn available() -> Option<u64> {
    available_in(Path::new("/")).map(|(bytes, _)| bytes)
}

/// The limit of a control group, where it leaves less memory than the machine has.
#[must_use]
pub fn limit() -> Option<MemoryLimit> {
    available_in(Path::new("/"))?.1
}

/// [`available`] and [`limit`], in the system whose files are below `root`.
fn available_in(root: &Path) -> Option<(u64, Option<MemoryLimit>)> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let of_machine = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).and_then(kibibytes);
    match (of_machine, cgroup::memory_limit(root)) {
        (Some(bytes), Some(limit)) if bytes <= limit.available_bytes => Some((bytes, None)),
        (_, Some(limit)) => Some((limit.available_bytes, Some(limit))),
        (bytes, None) => Some((bytes?, None)),
    }
}

/// Memory of this process: what it has allocated, and its code, which counts whole because it is read from the file when it
/// runs. `None` if the system does not report it.
#[must_use]
pub fn of_program() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let code: u64 = maps.lines().filter_map(code_bytes).sum();
    Some(occupied()? + code)
}

/// The bytes of a line of `/proc/self/maps`, if it maps a part of a program or library.
fn code_bytes(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (range, access) = (fields.next()?, fields.next()?);
    let (_, _, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    let is_code = inode != "0" && access.ends_with('p') && !access.starts_with("---");
    let address = |text| u64::from_str_radix(text, 16).ok();
    is_code.then(|| address(end)?.checked_sub(address(start)?)).flatten()
}

/// Memory of this process that [`available`] no longer counts: the pages that it has written. Weights mapped from a file do not
/// count, because the system can reclaim their pages. `None` if the system does not report it.
#[must_use]
pub fn occupied() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kibibytes(status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?)
}

/// Parses `"  12 kB"` to bytes.
fn kibibytes(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request() -> MemoryRequest {
        MemoryRequest {
            weights_bytes: 100 * MIB,
            scratch_bytes: 10 * MIB,
            text_bytes: 0,
            adapter_bytes: 0,
            request_bytes: 0,
            tier_bytes: 0,
            draft_bytes: 0,
            block_bytes: MIB,
            slot_bytes: 0,
            slots: StateSlots::wanted(0, 4, None),
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
    fn by_default_the_cache_holds_one_whole_context_and_a_share_per_further_sequence() {
        let plan = plan(&request()).unwrap();
        assert_eq!((plan.kv_blocks, plan.context_tokens), (256 + 3 * 64, 4096));
        assert_eq!(plan.total_bytes(), (100 + 10 + 448) * MIB);
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
            "the model needs 366.0 MiB (weights 100.0 MiB, KV cache at least 256.0 MiB, scratch 10.0 MiB), but only \
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
        let card =
            MemoryRequest { available_bytes: Some(300 * MIB), own_memory: Some("vulkan:0".to_owned()), ..request() };
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
        assert_eq!((roomy.state_slots, roomy.state_bytes, roomy.kv_blocks), (24, 24 * MIB, 448));
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
        let without = MemoryRequest { slots, own_memory: Some("vulkan:0".to_owned()), ..request() };
        let together = MemoryPlan::together([with, without].map(|request| plan(&request).unwrap()).to_vec());
        assert_eq!((together.state_slots, together.state_bytes), (7, 70 * MIB));
    }

    #[test]
    fn a_limit_is_used_to_the_byte() {
        let plan = plan(&MemoryRequest { limit_bytes: Some(200 * MIB), ..request() }).unwrap();
        assert_eq!((plan.kv_blocks, plan.total_bytes()), (90, 200 * MIB));
    }

    #[test]
    fn a_draft_model_takes_its_part() {
        let request = MemoryRequest { limit_bytes: Some(200 * MIB), draft_bytes: 50 * MIB, ..request() };
        let planned = plan(&request).unwrap();
        assert_eq!((planned.kv_blocks, planned.draft_bytes, planned.total_bytes()), (40, 50 * MIB, 200 * MIB));
        assert!(planned.to_string().contains("  draft      50.0 MiB"), "{planned}");
        let error = plan(&MemoryRequest { draft_bytes: 150 * MIB, ..request }).unwrap_err().to_string();
        assert!(error.contains("draft model 150.0 MiB"), "{error}");
    }

    #[test]
    fn tokenizer_and_requests_take_their_part() {
        let request =
            MemoryRequest { limit_bytes: Some(200 * MIB), text_bytes: 6 * MIB, request_bytes: 4 * MIB, ..request() };
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
    fn the_limit_of_a_container_is_what_is_available() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:  4194304 kB\n");
        assert_eq!(available_in(root.path()), Some((4 << 30, None)));
        write("proc/self/cgroup", "0::/\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/memory.max", "536870912\n");
        write("sys/fs/cgroup/memory.current", "104857600\n");
        let (bytes, limit) = available_in(root.path()).unwrap();
        assert_eq!((bytes, limit.as_ref().map(|limit| limit.limit_bytes)), (412 * MIB, Some(512 * MIB)));
        let plan = MemoryPlan { limit, ..plan(&MemoryRequest { available_bytes: Some(bytes), ..request() }).unwrap() };
        let shown = plan.to_string();
        assert!(shown.contains("of 412.0 MiB available, by the limit of 512.0 MiB in "), "{shown}");
        write("proc/meminfo", "MemAvailable: 102400 kB\n");
        assert_eq!(available_in(root.path()), Some((100 * MIB, None)), "the machine has less");
    }

    #[test]
    fn without_a_report_of_free_memory_nothing_is_refused() {
        assert!(plan(&MemoryRequest { available_bytes: None, weights_bytes: u64::MAX / 4, ..request() }).is_ok());
    }
}
