//! Generates drafts with an engine: which tokens of each sequence it has computed, and what the next step computes.
//!
//! Each sequence has blocks for the tokens that are computed. Between two drafts of a sequence its text has grown by what
//! was sampled; the tokens that both have in common are not computed again. Full blocks are found by their content, so the
//! next turn of a conversation and several answers to one prompt share them. When blocks are short, the sequence that was
//! continued longest ago loses its own.
//!
//! A layer of the model computes with the hidden values of the model, one position behind the tokens: row `i` joins the token at
//! `i + 1` and the hidden values at `i`, and gives the token at `i + 2`. The rows of a draft use the layer's own hidden values,
//! and are computed again when those of the model are known. The same is done for a draft model that computes with residuals of the
//! model (EAGLE-3); it may have logits of a part of the vocabulary only.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use cuelight_engine::engine::{
    BLOCK_TOKENS, Engine, EngineError, EngineLimits, HiddenInput, LogitsWanted, Progress, RowSamplingParams,
    SequenceRows, Step, StepId, StepOutput, TokenId,
};
use cuelight_engine::sample::{choose_by_row, token_of};

use super::trunk_store::TrunkStore;
use crate::core::draft::{DraftReply, DraftRequest, HiddenShare};
use crate::core::prompt_media::PromptMedia;
use crate::core::request::RequestId;
use crate::pipeline::policy::kv_blocks::{BlockHandle, BlockManager};
use crate::pipeline::policy::prefix_cache::Content;

/// Texts with more missing tokens than this are computed when no draft waits, in pieces of at most [`PIECE`] tokens.
const SHORT: usize = 64;

/// Most tokens of long texts in a step, so that a draft that comes meanwhile does not wait long.
const PIECE: usize = 128;

/// Most missing tokens of a text whose draft takes the usual time. Behind an accepted draft one or two are missing.
const USUAL: usize = 4;

/// Most bytes of the hidden values that a layer has not computed with yet.
pub const HIDDEN_BYTES: usize = 64 << 20;

/// What is computed of a sequence.
#[derive(Debug, Default)]
struct Computed {
    /// The first row. Hidden values of earlier positions were not known.
    origin: usize,
    /// The token of each row.
    tokens: Vec<TokenId>,
    blocks: Vec<BlockHandle>,
    /// Number of leading blocks whose content other sequences may find.
    shared_blocks: usize,
    /// When it was last continued.
    last_use: u64,
}

/// A draft that is being generated.
#[derive(Debug)]
struct Job {
    request: DraftRequest,
    /// Number of tokens before that of the first row.
    skipped: usize,
    drafted: Vec<TokenId>,
    /// The hidden values of the layer's last row, if it reads them.
    hidden: Vec<f32>,
    /// Whether few tokens were missing.
    is_short: bool,
    /// When it began, if its time is that of a usual draft.
    began: Option<Instant>,
}

impl Job {
    /// The tokens to compute next, behind the first `computed`.
    fn missing(&self, computed: usize) -> Vec<TokenId> {
        self.request.tokens.iter().chain(&self.drafted).skip(self.skipped + computed).copied().collect()
    }

    /// Number of rows of the text.
    fn text_length(&self) -> usize {
        self.request.tokens.len() - self.skipped
    }

    /// Number of rows of the text and the draft so far.
    fn length(&self) -> usize {
        self.text_length() + self.drafted.len()
    }

    /// How the next token of the draft is sampled; `None` if the draft is complete.
    fn draw(&self) -> Option<RowSamplingParams> {
        self.request.draws.get(self.drafted.len()).copied()
    }

    fn reply(self) -> DraftReply {
        let DraftRequest { id, tokens, .. } = self.request;
        let drafted = u32::try_from(self.drafted.len()).ok().filter(|&drafted| drafted > 0);
        let token_time = drafted.zip(self.began).map(|(drafted, began)| began.elapsed() / drafted);
        DraftReply { id, length: tokens.len(), tokens: Some(self.drafted), token_time }
    }
}

/// Generates drafts, several at a time.
#[derive(Debug)]
pub struct DraftGenerator {
    limits: EngineLimits,
    /// Size of the vocabulary of the model that verifies the drafts.
    vocab_size: usize,
    blocks: BlockManager,
    sequences: HashMap<RequestId, Computed>,
    jobs: VecDeque<Job>,
    next_step: StepId,
    clock: u64,
    /// The hidden values of the model, if the engine reads them.
    trunk: Option<TrunkStore>,
}

impl DraftGenerator {
    /// A generator for an engine with these limits that has computed nothing yet. The drafts are for a model with `vocab_size`
    /// tokens.
    #[must_use]
    pub fn new(limits: &EngineLimits, vocab_size: usize) -> Self {
        DraftGenerator {
            limits: limits.clone(),
            vocab_size,
            blocks: BlockManager::new(limits.kv_blocks),
            sequences: HashMap::new(),
            jobs: VecDeque::new(),
            next_step: StepId(0),
            clock: 0,
            trunk: (limits.hidden.reads.of_model > 0).then(|| {
                let width = limits.hidden.reads.of_model;
                let rows = HIDDEN_BYTES / (width * size_of::<f32>());
                TrunkStore::new(width, rows.max(limits.max_batched_tokens))
            }),
        }
    }

    /// Stores hidden values of the model.
    pub fn add_hidden(&mut self, shares: Vec<HiddenShare>) {
        if let Some(trunk) = &mut self.trunk {
            shares.into_iter().for_each(|share| trunk.add(share));
        }
    }

    /// Whether there is nothing to compute.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Adds a request. Returns the reply if the text is too long, or has a token that the engine does not know.
    #[must_use]
    pub fn add(&mut self, request: DraftRequest) -> Option<DraftReply> {
        let (id, length) = (request.id, request.tokens.len());
        let is_known = |token: &TokenId| (*token as usize) < self.limits.row_tokens();
        let whole = length + request.draws.len();
        let fits = whole <= self.limits.context_tokens && BlockManager::blocks_for(whole) <= self.limits.kv_blocks;
        if length == 0 || !fits || !request.tokens.iter().all(is_known) {
            return Some(DraftReply { id, length, tokens: None, token_time: None });
        }
        let Some((skipped, computed)) = self.start(&request) else {
            return Some(DraftReply { id, length, tokens: Some(Vec::new()), token_time: None });
        };
        let missing = length - skipped - computed;
        let (is_short, began) = (missing <= SHORT, (missing <= USUAL).then(Instant::now));
        let (drafted, hidden) = Default::default();
        self.jobs.push_back(Job { request, skipped, drafted, hidden, is_short, began });
        None
    }

    /// Number of tokens before that of row 0.
    fn shift(&self) -> usize {
        usize::from(self.trunk.is_some())
    }

    /// Keeps what is computed of a sequence and its text have in common, or finds it in shared blocks. Returns the number of
    /// tokens before that of its first row, and the number of rows that need not be computed: all but the last at most, because
    /// its logits are needed. `None` if hidden values of the text are missing.
    fn start(&mut self, request: &DraftRequest) -> Option<(usize, usize)> {
        let (shift, end) = (self.shift(), request.tokens.len() - 1);
        let text = request.tokens.get(shift..end)?;
        self.clock += 1;
        let sequence = self.sequences.entry(request.id).or_insert_with(|| {
            let found = self.blocks.find_prefix(&request.scope, text, &PromptMedia::default());
            let tokens = text[..found.len() * BLOCK_TOKENS].to_vec();
            Computed { origin: 0, tokens, shared_blocks: found.len(), blocks: self.blocks.take(&found), last_use: 0 }
        });
        let text = text.get(sequence.origin..).unwrap_or_default();
        let common = sequence.tokens.iter().zip(text).take_while(|(computed, token)| computed == token).count();
        sequence.tokens.truncate(common);
        sequence.last_use = self.clock;
        let known = self.trunk.as_ref().map(|trunk| trunk.known(request.id));
        if let Some(known) = known {
            if !known.contains(&(end - shift)) {
                return None;
            }
            if known.start > sequence.origin + common {
                // The layer sees the positions from here on only.
                sequence.blocks.drain(..).rev().for_each(|block| self.blocks.release(block));
                *sequence = Computed { origin: known.start, last_use: self.clock, ..Computed::default() };
            }
        }
        Some((shift + sequence.origin, sequence.tokens.len()))
    }

    /// Computes one step. Returns the replies to the requests that it completed.
    ///
    /// # Errors
    /// [`EngineError`] when the engine fails. It and this generator cannot be used any more.
    pub fn step(&mut self, engine: &mut dyn Engine) -> Result<Vec<DraftReply>, EngineError> {
        let (step, members) = self.form_step();
        if members.is_empty() {
            return Ok(self.give_up());
        }
        let computed: Vec<_> = step.sequences.iter().map(|rows| rows.tokens.clone()).collect();
        let id = step.id;
        let output = match engine.begin(step)? {
            Progress::Done(output) => output,
            Progress::AwaitExperts(_) => {
                let reason = "a draft model cannot leave experts to the host".to_owned();
                return Err(EngineError::InvalidStep { step: id, reason });
            }
        };
        for (id, tokens) in members.iter().zip(&computed) {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.tokens.extend(tokens);
            }
        }
        self.draw(members.into_iter().zip(computed.iter().map(Vec::len)), &output);
        Ok(self.take_completed())
    }

    /// Replies to the requests that cannot get blocks, which are all that are left.
    fn give_up(&mut self) -> Vec<DraftReply> {
        self.sequences.retain(|_, sequence| !sequence.blocks.is_empty());
        self.jobs.drain(..).map(Job::reply).collect()
    }

    /// The rows of the next step, and the requests whose rows they are.
    fn form_step(&mut self) -> (Step, Vec<RequestId>) {
        let mut step = Step { id: self.next_step, sequences: Vec::new() };
        self.next_step = StepId(self.next_step.0 + 1);
        let (mut members, mut rows_left) = (Vec::new(), self.limits.max_batched_tokens);
        let drafts = self.jobs.iter().any(|job| job.is_short);
        if !drafts {
            rows_left = rows_left.min(PIECE);
        }
        let all: Vec<_> = self.jobs.iter().filter(|job| job.is_short == drafts).map(|job| job.request.id).collect();
        for id in all {
            if rows_left == 0 || step.sequences.len() == self.limits.max_sequences {
                break;
            }
            let Some(rows) = self.rows(id, rows_left, &members) else { continue };
            rows_left -= rows.tokens.len();
            step.sequences.push(rows);
            members.push(id);
        }
        (step, members)
    }

    /// The next rows of a request, at most `most`. `None` when no blocks can be had for them without those of `members`.
    fn rows(&mut self, id: RequestId, most: usize, members: &[RequestId]) -> Option<SequenceRows> {
        let job = self.jobs.iter().find(|job| job.request.id == id)?;
        let (from, length, draw) = (self.sequences.get(&id)?.tokens.len(), job.length(), job.draw());
        let mut tokens = job.missing(from);
        tokens.truncate(most);
        let to = from + tokens.len();
        let hidden = self.hidden(job, from..to)?;
        let keep = |other: &RequestId| *other == id || members.contains(other);
        while self.sequences[&id].blocks.len() < BlockManager::blocks_for(to) {
            let block = self.blocks.allocate().or_else(|| self.evict(&keep))?;
            self.sequences.get_mut(&id)?.blocks.push(block);
        }
        let blocks = &self.sequences[&id].blocks[..BlockManager::blocks_for(to)];
        let draw = draw.filter(|_| to == length);
        Some(SequenceRows {
            tokens,
            first_position: u32::try_from(from).ok()?,
            block_table: blocks.iter().map(BlockHandle::id).collect(),
            logits: draw.map_or(LogitsWanted::None, LogitsWanted::Token),
            returns_hidden: self.trunk.is_some() && draw.is_some(),
            hidden,
            ..SequenceRows::default()
        })
    }

    /// The hidden values with which these rows of a request are computed, none if the engine reads none. `None` if they are not
    /// known any more.
    fn hidden(&self, job: &Job, rows: Range<usize>) -> Option<Vec<f32>> {
        let Some(trunk) = &self.trunk else { return Some(Vec::new()) };
        let HiddenInput { of_model, own } = self.limits.hidden.reads;
        if rows.start >= job.text_length() {
            let before = if own > 0 { of_model } else { 0 };
            return Some([vec![0.0; before], job.hidden.clone()].concat());
        }
        let first = job.skipped - self.shift();
        let values = trunk.read(job.request.id, first + rows.start..first + rows.end)?;
        let without_own = |row: &[f32]| [row, &vec![0.0; own]].concat();
        Some(if own > 0 { values.chunks_exact(of_model).flat_map(without_own).collect() } else { values })
    }

    /// The token of a logit, if the model that verifies the drafts has it.
    fn token(&self, logit: TokenId) -> Option<TokenId> {
        let token = match &self.limits.logit_tokens {
            Some(logits) => *logits.tokens.get(logit as usize)?,
            None => logit,
        };
        Some(token).filter(|token| (*token as usize) < self.vocab_size)
    }

    /// Takes the blocks of the sequence that was continued longest ago, and returns one that is free then.
    fn evict(&mut self, keep: &impl Fn(&RequestId) -> bool) -> Option<BlockHandle> {
        loop {
            let others = self.sequences.iter().filter(|(id, sequence)| !keep(id) && !sequence.blocks.is_empty());
            let oldest = others.min_by_key(|(_, sequence)| sequence.last_use).map(|(&id, _)| id)?;
            let sequence = self.sequences.get_mut(&oldest)?;
            (sequence.tokens, sequence.shared_blocks) = (Vec::new(), 0);
            sequence.blocks.drain(..).rev().for_each(|block| self.blocks.release(block));
            if self.jobs.iter().all(|job| job.request.id != oldest) {
                self.sequences.remove(&oldest);
            }
            if let Some(block) = self.blocks.allocate() {
                return Some(block);
            }
        }
    }

    /// Appends a token to each draft whose text is computed, given the number of rows of each sequence in the step.
    fn draw(&mut self, members: impl Iterator<Item = (RequestId, usize)>, output: &StepOutput) {
        let mut logits = output.logits.chunks_exact(self.limits.vocab_size.max(1));
        let mut hidden = output.hidden.chunks_exact(self.limits.hidden.width.max(1));
        let mut sampled = output.sampled.iter();
        for (id, rows) in members {
            let Some(index) = self.jobs.iter().position(|job| job.request.id == id) else { continue };
            let computed = self.sequences.get(&id).map_or(0, |sequence| sequence.tokens.len());
            let job = &mut self.jobs[index];
            let Some(draw) = job.draw().filter(|_| computed == job.length()) else { continue };
            if let Some(hidden) = hidden.by_ref().take(rows).last() {
                job.hidden = hidden.to_vec();
            }
            let sampled = sampled.next().copied().flatten();
            let sampled = sampled.or_else(|| Some(choose_by_row(logits.next()?, &draw)));
            let token = sampled.and_then(|sampled| self.token(token_of(sampled).ok()?));
            let job = &mut self.jobs[index];
            match token {
                Some(token) => job.drafted.push(token),
                // The draft ends here.
                None => job.request.draws.truncate(job.drafted.len()),
            }
        }
    }

    /// Removes the completed jobs and makes the blocks of their texts known to other sequences.
    fn take_completed(&mut self) -> Vec<DraftReply> {
        let mut replies = Vec::new();
        for job in std::mem::take(&mut self.jobs) {
            let computed = self.sequences.get(&job.request.id).map_or(0, |sequence| sequence.tokens.len());
            if computed < job.text_length() || job.draw().is_some() {
                self.jobs.push_back(job);
                continue;
            }
            self.forget_used(&job);
            self.share_blocks(&job.request);
            replies.push(job.reply());
        }
        replies
    }

    /// Drops the hidden values that a text needs no more, except those of the last row, with which the same text is continued
    /// again. The rows of the draft were computed with other hidden values than those of the model.
    fn forget_used(&mut self, job: &Job) {
        let (Some(trunk), Some(sequence)) = (&mut self.trunk, self.sequences.get_mut(&job.request.id)) else { return };
        sequence.tokens.truncate(job.text_length());
        trunk.forget_before(job.request.id, job.request.tokens.len() - 2);
    }

    /// Makes the full blocks of a text known, unless it was computed without its beginning. The draft behind it may turn out to
    /// be wrong.
    fn share_blocks(&mut self, request: &DraftRequest) {
        let text = request.tokens.get(self.shift()..).unwrap_or_default();
        let Some(sequence) = self.sequences.get_mut(&request.id).filter(|sequence| sequence.origin == 0) else {
            return;
        };
        let known = sequence.tokens.len().min(text.len()) / BLOCK_TOKENS;
        for index in sequence.shared_blocks..known {
            let before = index.checked_sub(1).map(|before| sequence.blocks[before].id());
            let tokens = &text[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
            let content = Content::new(&request.scope, before, tokens);
            self.blocks.insert_cached(&mut sequence.blocks[index], content, self.next_step);
        }
        sequence.shared_blocks = sequence.shared_blocks.max(known);
        // No step runs, so nothing writes to the blocks that were replaced.
        self.blocks.step_is_done(self.next_step);
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use cuelight_engine::engine::LogitTokens;
    use cuelight_engine::sample::Draw;

    use super::*;
    use crate::core::prefix_scope::PrefixScope;
    use crate::pipeline::simulation::{SimulatedModel, tokenizer};

    /// A simulated engine and its generator.
    struct World {
        model: SimulatedModel,
        engine: Box<dyn Engine>,
        generator: DraftGenerator,
    }

    fn world(kv_blocks: usize) -> World {
        let mut model = SimulatedModel { end_one_in: u64::MAX, ..SimulatedModel::new(tokenizer()) };
        model.limits.kv_blocks = kv_blocks;
        let engine = Box::new(model.engine());
        World { generator: DraftGenerator::new(&model.limits, model.limits.vocab_size), engine, model }
    }

    fn asked(id: u64, tokens: &[TokenId], most: usize) -> DraftRequest {
        DraftRequest {
            id: RequestId(id),
            tokens: tokens.to_vec(),
            scope: PrefixScope::default(),
            draws: vec![RowSamplingParams::GREEDY; most],
        }
    }

    fn text(length: usize, salt: u32) -> Vec<TokenId> {
        (0..length as u32).map(|i| TokenId::from(b'a') + (i * 7 + salt) % 26).collect()
    }

    impl World {
        fn rows(&self) -> u64 {
            self.model.counters.rows.load(Ordering::Relaxed)
        }

        /// Computes drafts for requests that come at the same time, in the order of their ids.
        fn drafts(&mut self, requests: Vec<DraftRequest>) -> Vec<DraftReply> {
            let mut replies: Vec<_> = requests.into_iter().filter_map(|request| self.generator.add(request)).collect();
            while !self.generator.is_idle() {
                replies.extend(self.generator.step(&mut *self.engine).unwrap());
            }
            replies.sort_by_key(|reply| reply.id);
            replies
        }

        fn draft(&mut self, request: DraftRequest) -> Vec<TokenId> {
            self.drafts(vec![request]).remove(0).tokens.unwrap()
        }
    }

    /// The draft of a generator that has computed nothing else.
    fn alone(tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        world(64).draft(asked(1, tokens, most))
    }

    #[test]
    fn a_draft_goes_on_from_what_is_computed() {
        let mut world = world(64);
        let mut tokens = text(40, 0);
        let draft = world.draft(asked(1, &tokens, 4));
        assert_eq!((draft.len(), world.rows()), (4, 40 + 3));
        // Two drafted tokens are right, then another token follows.
        tokens.extend(&draft[..2]);
        tokens.push(b'z'.into());
        let before = world.rows();
        assert_eq!(world.draft(asked(1, &tokens, 3)), alone(&tokens, 3));
        assert_eq!(world.rows() - before, 1 + 2);
    }

    #[test]
    fn the_time_of_a_draft_is_measured_without_that_of_a_new_text() {
        let mut world = world(64);
        let mut tokens = text(40, 0);
        assert_eq!(world.drafts(vec![asked(1, &tokens, 4)])[0].token_time, None);
        tokens.push(b'z'.into());
        assert!(world.drafts(vec![asked(1, &tokens, 4)])[0].token_time.is_some());
    }

    #[test]
    fn tokens_are_sampled_with_the_random_numbers_of_the_request() {
        let (tokens, greedy) = (text(40, 0), alone(&text(40, 0), 6));
        let draws = |seed: u64| {
            let random = |position| Draw { seed, position }.random();
            (0..6)
                .map(|index| RowSamplingParams { temperature: 1.5, random: random(index), ..RowSamplingParams::GREEDY })
                .collect()
        };
        for engine_samples in [false, true] {
            let mut drafts = Vec::new();
            for seed in [1, 1, 2] {
                let mut world = world(64);
                world.model.samples = engine_samples;
                world.engine = Box::new(world.model.engine());
                drafts.push(world.draft(DraftRequest { draws: draws(seed), ..asked(1, &tokens, 0) }));
            }
            assert_eq!(drafts[0].len(), 6);
            assert!(drafts[0] == drafts[1] && drafts[0] != drafts[2] && drafts[0] != greedy, "{drafts:?}");
        }
    }

    #[test]
    fn sequences_are_drafted_in_one_batch_and_do_not_mix() {
        let mut world = world(64);
        let texts: Vec<_> = (0..5).map(|i| text(20 + i, i as u32)).collect();
        let requests = texts.iter().enumerate().map(|(i, tokens)| asked(i as u64, tokens, 3 + i % 2));
        let replies = world.drafts(requests.collect());
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.tokens.as_ref().unwrap(), &alone(&texts[i], 3 + i % 2), "sequence {i}");
        }
        assert!(world.model.counters.steps.load(Ordering::Relaxed) <= 4);
    }

    #[test]
    fn a_text_that_begins_as_another_shares_its_blocks_within_a_scope() {
        let mut world = world(64);
        let tokens = text(100, 0);
        world.draft(asked(1, &tokens, 2));
        let before = world.rows();
        assert_eq!(world.draft(asked(2, &tokens, 2)), alone(&tokens, 2));
        assert_eq!(world.rows() - before, (100 - 99 / BLOCK_TOKENS * BLOCK_TOKENS) as u64 + 1);
        let before = world.rows();
        let scope = PrefixScope { salt: Some("other".into()), ..PrefixScope::default() };
        world.draft(DraftRequest { scope, ..asked(3, &tokens, 1) });
        assert_eq!(world.rows() - before, 100);
    }

    #[test]
    fn short_memory_evicts_the_sequence_that_was_continued_longest_ago() {
        let mut world = world(10);
        let texts: Vec<_> = (0..3).map(|i| text(4 * BLOCK_TOKENS - 8, 5 * i)).collect();
        for _ in 0..3 {
            for (i, tokens) in texts.iter().enumerate() {
                assert_eq!(world.draft(asked(i as u64, tokens, 3)), alone(tokens, 3), "sequence {i}");
            }
        }
        let before = world.rows();
        world.draft(asked(2, &texts[2], 3));
        assert_eq!(world.rows() - before, 3, "the newest sequence was kept");
        // All at the same time do not fit, and what cannot be computed is answered without a draft.
        let requests = texts.iter().enumerate().map(|(i, tokens)| asked(10 + i as u64, tokens, 3)).collect();
        for (reply, tokens) in world.drafts(requests).iter().zip(&texts) {
            let draft = reply.tokens.as_ref().unwrap();
            assert!(draft.is_empty() || *draft == alone(tokens, 3), "{draft:?}");
        }
    }

    #[test]
    fn long_texts_are_computed_in_pieces_between_drafts() {
        let mut world = world(64);
        let long = text(300, 3);
        assert_eq!(world.generator.add(asked(1, &long, 0)), None);
        assert!(world.generator.step(&mut *world.engine).unwrap().is_empty());
        assert_eq!(world.rows(), PIECE as u64);
        let short = text(20, 9);
        assert_eq!(world.generator.add(asked(2, &short, 2)), None);
        let first = world.generator.step(&mut *world.engine).unwrap();
        let second = world.generator.step(&mut *world.engine).unwrap();
        let reply = first.into_iter().chain(second).next().unwrap();
        assert_eq!((reply.id, reply.tokens), (RequestId(2), Some(alone(&short, 2))));
        while !world.generator.is_idle() {
            world.generator.step(&mut *world.engine).unwrap();
        }
        let before = world.rows();
        assert_eq!(world.draft(asked(1, &long, 2)), alone(&long, 2));
        assert_eq!(world.rows() - before, 2);
    }

    /// A world with a layer of the model, and the model.
    fn layer(kv_blocks: usize) -> (World, World) {
        let mut trunk = world(64);
        trunk.model = trunk.model.with_prediction();
        let layer = SimulatedModel::clone(trunk.model.draft.as_ref().unwrap());
        let mut layer = World { engine: Box::new(layer.engine()), model: layer, generator: trunk.generator };
        layer.model.limits.kv_blocks = kv_blocks;
        layer.generator = DraftGenerator::new(&layer.model.limits, layer.model.limits.vocab_size);
        let trunk = World { engine: Box::new(trunk.model.engine()), ..world(64) };
        (layer, trunk)
    }

    impl World {
        /// The hidden values of a text from a position on, computed by the model in its first blocks.
        fn hidden(&mut self, id: u64, tokens: &[TokenId], from: usize) -> HiddenShare {
            let rows = SequenceRows {
                tokens: tokens.to_vec(),
                block_table: (0..32).collect(),
                returns_hidden: true,
                ..SequenceRows::default()
            };
            let step = Step { id: StepId(0), sequences: vec![rows] };
            let Progress::Done(output) = self.engine.begin(step).unwrap() else { panic!("no experts here") };
            let width = output.hidden.len() / tokens.len();
            HiddenShare { id: RequestId(id), first_position: from, values: output.hidden[from * width..].to_vec() }
        }
    }

    #[test]
    fn a_layer_drafts_from_the_hidden_values_of_the_model() {
        let (mut layer, mut trunk) = layer(64);
        let mut tokens = text(40, 0);
        // The newest token is not computed yet.
        layer.generator.add_hidden(vec![trunk.hidden(1, &tokens[..39], 0)]);
        let draft = layer.draft(asked(1, &tokens, 4));
        assert_eq!((&draft, layer.rows()), (&alone(&tokens, 4), 39 + 3));
        // Two are right, the step has computed all of them, and another token follows.
        let mut drafted = tokens.clone();
        drafted.extend(&draft);
        layer.generator.add_hidden(vec![trunk.hidden(1, &drafted, 39)]);
        tokens.extend(&draft[..2]);
        tokens.push(b'z'.into());
        let before = layer.rows();
        assert_eq!(layer.draft(asked(1, &tokens, 3)), alone(&tokens, 3));
        assert_eq!(layer.rows() - before, 3 + 2, "the rows of the draft are computed again");
        // The same text once more.
        assert_eq!(layer.draft(asked(1, &tokens, 2)), alone(&tokens, 2));
    }

    #[test]
    fn a_layer_without_the_hidden_values_of_the_beginning_sees_the_rest() {
        let (mut layer, mut trunk) = layer(64);
        let tokens = text(40, 0);
        layer.generator.add_hidden(vec![trunk.hidden(1, &tokens[..39], 32)]);
        assert_eq!(layer.draft(asked(1, &tokens, 3)), alone(&tokens, 3));
        assert_eq!(layer.rows(), 7 + 2);
        // Without those of the last positions it drafts nothing, until they are known.
        let mut longer = tokens.clone();
        longer.extend(text(20, 5));
        assert!(layer.draft(asked(1, &longer, 3)).is_empty());
        layer.generator.add_hidden(vec![trunk.hidden(1, &longer[..59], 58)]);
        assert_eq!(layer.draft(asked(1, &longer, 3)), alone(&longer, 3));
        assert!(layer.draft(asked(2, &tokens, 3)).is_empty(), "no hidden values are known");
        assert!(layer.draft(asked(3, &tokens[..1], 3)).is_empty(), "the first row needs two tokens");
    }

    #[test]
    fn a_layer_shares_the_rows_of_a_common_beginning() {
        let (mut layer, mut trunk) = layer(64);
        let tokens = text(60, 0);
        layer.generator.add_hidden(vec![trunk.hidden(1, &tokens[..59], 0)]);
        layer.draft(asked(1, &tokens, 2));
        // The model has found the beginning in its prefix cache, so it computes the last rows only.
        layer.generator.add_hidden(vec![trunk.hidden(2, &tokens[..59], 48)]);
        let before = layer.rows();
        assert_eq!(layer.draft(asked(2, &tokens, 2)), alone(&tokens, 2));
        assert_eq!(layer.rows() - before, 59 - 48 + 1);
    }

    #[test]
    fn a_layer_with_short_memory_drafts_right_or_nothing() {
        let (mut layer, mut trunk) = layer(10);
        let mut texts: Vec<_> = (0..3).map(|i| text(4 * BLOCK_TOKENS - 8, 5 * i)).collect();
        for round in 0..6 {
            for (id, tokens) in (0..).zip(&mut texts) {
                let from = if round == 0 { 0 } else { tokens.len() - 2 };
                layer.generator.add_hidden(vec![trunk.hidden(id, &tokens[..tokens.len() - 1], from)]);
                let draft = layer.draft(asked(id, tokens, 3));
                assert!(draft.is_empty() || draft == alone(tokens, 3), "round {round}: {draft:?}");
                tokens.push(b'x'.into());
            }
        }
    }

    /// A generator whose engine has logits of other tokens, for a model with this many tokens.
    fn with_logit_tokens(vocab_size: usize) -> World {
        let mut world = world(64);
        let known = world.model.limits.vocab_size;
        let tokens = (0..known).map(|logit| ((logit + 1) % known) as TokenId).collect();
        let logit_tokens = Some(LogitTokens { tokens, vocab_size: known });
        let limits = EngineLimits { logit_tokens, ..world.model.limits.clone() };
        world.generator = DraftGenerator::new(&limits, vocab_size);
        world
    }

    #[test]
    fn logits_of_a_part_of_the_vocabulary_become_tokens() {
        let tokens = text(40, 0);
        let logit = alone(&tokens, 1)[0];
        let of = |vocab_size: usize| with_logit_tokens(vocab_size).draft(asked(1, &tokens, 1));
        assert_eq!(of(usize::MAX), [logit + 1]);
        assert!(of(logit as usize + 1).is_empty(), "the model does not have the token");
    }

    #[test]
    fn what_the_draft_model_cannot_continue_is_refused_at_once() {
        let mut world = world(64);
        let context = world.model.limits.context_tokens;
        for tokens in [text(context, 0), vec![], vec![TokenId::MAX]] {
            let reply = world.generator.add(asked(1, &tokens, 2)).unwrap();
            assert_eq!((reply.length, reply.tokens), (tokens.len(), None));
        }
        assert!(world.generator.is_idle());
    }
}
