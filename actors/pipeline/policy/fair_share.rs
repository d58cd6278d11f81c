//! Shares the running slots and the KV blocks out between clients.
//!
//! The fair queue orders prompts. A waiting prompt that comes before a running one is admitted first, if it fits. A client that
//! came first may still hold every slot, with answers that take hours. So when a waiting prompt finds no slot or no blocks, and its
//! client runs at least two sequences fewer than another one, sequences of the client with the most are preempted for it. They wait
//! directly behind it and are recomputed later, mostly from the prefix cache. A swap never reverses the difference between two
//! clients, so it is never undone by another swap.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::kv_blocks::BlockManager;
use super::residency::{AdmissionOutcome, Victims};
use super::sequence::{Rank, Sequence};
use super::{Effect, Policy};
use crate::core::shared_limit::Client;

/// Maximum number of waiting prompts that are searched for clients below their share.
const MAX_SEARCHED: usize = 256;

/// What has to be preempted for a waiting prompt.
#[derive(Debug, PartialEq, Eq)]
enum Replacement {
    /// These sequences.
    Victims(Vec<Rank>),
    /// Sequences that the executor still computes.
    Busy,
    /// No client has so much more that this would be fair, or it would not be enough.
    None,
}

impl Policy {
    /// Admits waiting prompts that come before running ones, and prompts of clients that run fewer sequences than others,
    /// instead of sequences of these others.
    ///
    /// Returns `false` when no step should be formed until the executor has finished its steps, because it still computes
    /// a sequence that has to be preempted.
    pub(super) fn admit_underserved(&mut self, effects: &mut Vec<Effect>) -> bool {
        let is_ordered = self.waiting.first() > self.running.last();
        if self.waiting.is_empty() || (is_ordered && self.fair_queue.active_clients() < 2) {
            return true;
        }
        for rank in self.first_of_clients() {
            if self.fits(rank) {
                self.admit_before_running(rank, effects);
                continue;
            }
            match self.replacement(rank) {
                Replacement::Victims(victims) => self.replace(&victims, rank, effects),
                Replacement::Busy => {
                    self.awaits_executor = true;
                    return false;
                }
                Replacement::None => {}
            }
        }
        true
    }

    /// Admits a prompt that fits if it comes before a running one, which would take the rows of the step otherwise.
    fn admit_before_running(&mut self, rank: Rank, effects: &mut Vec<Effect>) {
        let mut behind = self.running.range(rank..).map(|rank| &self.sequences[&rank.id]);
        if behind.any(|sequence| !sequence.paused && !sequence.is_answering()) {
            let victims = Victims::LowerPriority(self.sequences[&rank.id].priority);
            let _: AdmissionOutcome = self.admit(rank, victims, effects);
        }
    }

    /// The first prompt of each client that waits only for a slot or for blocks.
    fn first_of_clients(&self) -> Vec<Rank> {
        let mut seen: HashSet<&Client> = HashSet::new();
        let waiting = self.waiting.iter().take(MAX_SEARCHED).map(|rank| &self.sequences[&rank.id]);
        let ready = waiting.filter(|s| s.is_admissible() && !s.is_suspect() && !self.follows(s.rank.id));
        ready.filter(|sequence| seen.insert(&sequence.client)).map(|sequence| sequence.rank).collect()
    }

    /// Whether a waiting prompt finds a slot and blocks.
    fn fits(&self, rank: Rank) -> bool {
        self.active() < self.max_running() && self.missing_blocks(rank) == 0
    }

    /// Number of blocks that must become available before a waiting prompt is admitted.
    fn missing_blocks(&self, rank: Rank) -> usize {
        let sequence = &self.sequences[&rank.id];
        let wanted = BlockManager::blocks_for(sequence.tokens.len()) + self.active();
        wanted.saturating_sub(self.cached_blocks(sequence) + self.blocks.available())
    }

    /// The sequences to preempt for a waiting prompt, taken from the client that has the most: first those that were
    /// preempted least often, so that no sequence is preempted again and again, and of these the last one.
    fn replacement(&self, rank: Rank) -> Replacement {
        let newcomer = &self.sequences[&rank.id];
        let running = || self.running.iter().map(|rank| &self.sequences[&rank.id]).filter(|s| !s.paused);
        let mut counts: HashMap<&Client, usize> = HashMap::new();
        running().for_each(|sequence| *counts.entry(&sequence.client).or_default() += 1);
        let own = counts.get(&newcomer.client).copied().unwrap_or(0);
        let mut candidates: Vec<&Sequence> =
            running().filter(|s| s.client != newcomer.client && s.priority >= newcomer.priority).collect();
        let (mut slots, mut blocks) = (self.active() + 1, self.missing_blocks(rank));
        let (mut victims, mut is_busy) = (Vec::new(), false);
        while slots > self.max_running() || blocks > 0 {
            let fair = candidates.iter().enumerate().filter(|(_, s)| counts[&s.client] >= own + 2);
            let Some((index, victim)) = fair.max_by_key(|(_, s)| (counts[&s.client], Reverse(s.yielded), s.rank))
            else {
                return Replacement::None;
            };
            is_busy |= self.is_at_executor(victim);
            victims.push(victim.rank);
            slots -= 1;
            // Each running sequence also reserves a block.
            blocks = blocks.saturating_sub(victim.blocks.len() + 1);
            counts.entry(&victim.client).and_modify(|count| *count -= 1);
            candidates.swap_remove(index);
        }
        if is_busy { Replacement::Busy } else { Replacement::Victims(victims) }
    }

    fn replace(&mut self, victims: &[Rank], newcomer: Rank, effects: &mut Vec<Effect>) {
        for &victim in victims {
            self.preempt(victim, effects);
            self.move_behind(victim, newcomer);
        }
        let victims = Victims::LowerPriority(self.sequences[&newcomer.id].priority);
        // Shared blocks may leave too few. The prompt is then the first to be admitted.
        let _: AdmissionOutcome = self.admit(newcomer, victims, effects);
    }

    /// Moves a waiting sequence behind another one in the order.
    fn move_behind(&mut self, rank: Rank, first: Rank) {
        self.waiting.remove(&rank);
        let virtual_finish = rank.virtual_finish.max(first.virtual_finish.saturating_add(1));
        let moved = Rank { virtual_finish, ..rank };
        let sequence = self.sequence_mut(rank.id);
        sequence.rank = moved;
        sequence.yielded += 1;
        self.waiting.insert(moved);
    }
}
