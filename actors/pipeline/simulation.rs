//! An engine without a model, for tests of everything around engines. It needs no file and no waiting.
//!
//! Every token depends only on the tokens before it. The engine stores a running hash of them in its KV blocks, where a
//! real engine stores keys and values. A block that is lost, shared by mistake or read too early therefore changes the
//! text. Time is virtual, and a function of the steps injects faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuelight_engine::embedding::{ClassScores, EmbeddingSpec, Pooling, Relevance};
use cuelight_engine::engine::{
    BLOCK_TOKENS, CacheLayout, CacheUnit, Canvas, CanvasLimits, DenoisedRow, EmbeddingLimits, EmbeddingRows, Engine,
    EngineError, EngineLimits, ExpertJob, ExpertResult, HiddenInput, HiddenLimits, LogitsWanted, Progress,
    SampledToken, SequenceRows, Step, StepOutput, TokenId, UnitBytes,
};
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{
    LoadCancel, LoadProgress, LoadedModel, MemoryBreakdown, MemoryPlan, ModelCard, ModelFiles,
};
use cuelight_engine::memory::{BlockBytes, MemoryId, Pool};
use cuelight_engine::profile::{Cost, OpLabel, OpSpan};
use cuelight_engine::sample::{DenoisingRule, PartialSampling, RecommendedSampling, choose_by_row};

use super::model_source::{DraftModel, EngineHost, MediaModel, ModelSource, SourceError};
use super::simulated_media::SimulatedMedia;
use crate::core::byte_tokenizer::byte_tokenizer;

/// A tokenizer without a file: one token per byte with the value of the byte, and 256 as end of generation.
#[must_use]
pub fn tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer(&[], &[])
}

/// As [`tokenizer`], with tokens for filling in the middle from 257 on: prefix, suffix, middle, repository and file.
#[must_use]
pub fn infill_tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"], &[])
}

/// As [`tokenizer`], with tokens for media from 257 on: what begins a media item, what stands at its rows, and what ends it.
#[must_use]
pub fn media_tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer(&["<|image|>", "<|image_row|>", "<|image_end|>", "<|audio|>", "<|audio_row|>", "<|audio_end|>"], &[])
}

/// As [`media_tokenizer`], with the token before the words of a model that only transcribes.
#[must_use]
pub fn transcribing_tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer(&["<|image|>", "<|audio|>", "<|audio_row|>", "<|audio_end|>", "<asr_text>"], &[])
}

/// As [`tokenizer`], with the tokens around words of a model that hears a window at a time, from 257 on.
#[cfg(test)]
pub(crate) fn marked_tokenizer() -> Arc<Tokenizer> {
    let tasks = ["<|translate|>", "<|transcribe|>", "<|nospeech|>", "<|notimestamps|>"];
    byte_tokenizer(&[&["<|startoftranscript|>", "<|en|>", "<|de|>"][..], &tasks].concat(), &[])
}

/// As [`infill_tokenizer`], with the tokens of a model whose prompts begin with the suffix.
#[cfg(test)]
pub(crate) fn suffix_first_tokenizer() -> Arc<Tokenizer> {
    byte_tokenizer(&["[PREFIX]", "[SUFFIX]", "[MIDDLE]"], &[])
}

/// As [`tokenizer`], with tokens of several characters from 257 on, spelled as in byte-level vocabularies.
#[must_use]
pub fn tokenizer_of_words(words: &[&str]) -> Arc<Tokenizer> {
    byte_tokenizer(&[], words)
}

/// A fault of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The engine panics.
    Panic,
    /// The device is lost.
    DeviceLost,
    /// The engine refuses the step.
    InvalidStep,
    /// The step returns logits that are not numbers.
    NotANumber,
    /// The step submits an expert job.
    AwaitExperts,
    /// The step takes this much longer.
    Slow(Duration),
}

/// Returns the fault of a step, if any, given its number among all steps of all engines of the source.
pub type FaultInjector = Arc<dyn Fn(u64, &Step) -> Option<Fault> + Send + Sync>;

/// A source of simulated engines.
#[derive(Clone)]
pub struct SimulatedModel {
    /// The limits of the engine. `vocab_size` is that of the tokenizer.
    pub limits: EngineLimits,
    /// Converts text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders a conversation as a prompt.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Tokens that the engine generates.
    pub output_tokens: Arc<[TokenId]>,
    /// After each token, generation ends with a probability of one in this many.
    pub end_one_in: u64,
    /// Whether most tokens follow from the two before them, so that texts repeat.
    pub repeats: bool,
    /// Time of a step, without its rows.
    pub step_time: Duration,
    /// Additional time per row.
    pub row_time: Duration,
    /// Whether each step reports its ops: two of them, each with half of its time.
    pub profile_ops: bool,
    /// How the model recommends to sample.
    pub sampling: PartialSampling,
    /// Whether the engine samples tokens itself where it may.
    pub samples: bool,
    /// Where the engine runs.
    pub host: EngineHost,
    /// Claimed size of its weights. A live engine counts as this plus its KV cache.
    pub weights_bytes: u64,
    /// Injects faults.
    pub faults: Option<FaultInjector>,
    /// How it denoises blocks of tokens, if it generates these.
    pub denoising: Option<DenoisingRule>,
    /// What its hidden values are, if it is a reranker.
    pub relevance: Option<Relevance>,
    /// The names of its classes, of which a text has one; none if its hidden values are no logits of classes.
    pub labels: Vec<String>,
    /// The model that drafts tokens for it.
    pub draft: Option<Arc<SimulatedModel>>,
    /// How it takes media, if it does.
    pub media: Option<Arc<SimulatedMedia>>,
    /// Counters, shared by all clones.
    pub counters: Arc<SimulationCounters>,
}

/// Counters of simulated engines.
#[derive(Debug, Default)]
pub struct SimulationCounters {
    /// Number of loaded models.
    pub loads: AtomicU64,
    /// Number of started steps.
    pub steps: AtomicU64,
    /// Number of computed rows.
    pub rows: AtomicU64,
    /// Number of sequences in a step, summed over steps.
    pub sequences: AtomicU64,
    /// Bytes of the engines that exist now.
    pub live_bytes: AtomicU64,
    /// Maximum of `live_bytes` so far.
    pub peak_live_bytes: AtomicU64,
}

/// Counts an engine in [`SimulationCounters::live_bytes`], until dropped.
struct LiveBytes {
    bytes: u64,
    counters: Arc<SimulationCounters>,
}

impl LiveBytes {
    fn new(bytes: u64, counters: &Arc<SimulationCounters>) -> Self {
        let live = counters.live_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        counters.peak_live_bytes.fetch_max(live, Ordering::AcqRel);
        LiveBytes { bytes, counters: counters.clone() }
    }
}

impl Drop for LiveBytes {
    fn drop(&mut self) {
        self.counters.live_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl SimulatedModel {
    /// A small model that generates lower-case letters and spaces, takes no time and never fails.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let vocab_size = tokenizer.vocab_size();
        let is_output = |&token: &TokenId| {
            let bytes = tokenizer.token_bytes(token, true);
            !bytes.is_empty() && bytes.iter().all(|&byte| byte == b' ' || byte.is_ascii_lowercase())
        };
        let vocabulary = 0..TokenId::try_from(vocab_size).unwrap_or(TokenId::MAX);
        SimulatedModel {
            limits: EngineLimits {
                vocab_size,
                context_tokens: 512,
                kv_blocks: 256,
                max_batched_tokens: 256,
                max_sequences: 16,
                max_logits_rows: 64,
                hidden: HiddenLimits { width: HIDDEN_WIDTH, max_rows: 64, ..HiddenLimits::default() },
                device: "simulated".into(),
                ..EngineLimits::default()
            },
            output_tokens: vocabulary.filter(is_output).collect(),
            tokenizer,
            chat_template: None,
            end_one_in: 40,
            repeats: false,
            step_time: Duration::ZERO,
            row_time: Duration::ZERO,
            profile_ops: false,
            sampling: PartialSampling::default(),
            samples: false,
            host: EngineHost::VirtualTime,
            weights_bytes: 0,
            faults: None,
            denoising: None,
            relevance: None,
            labels: Vec::new(),
            draft: None,
            media: None,
            counters: Arc::default(),
        }
    }

    /// The model with media.
    #[must_use]
    pub fn with_media(mut self, media: SimulatedMedia) -> Self {
        let width = media.images.as_ref().or(media.audio.as_ref()).map_or(0, |spec| spec.width);
        self.limits.embeddings = Some(EmbeddingLimits { width, ..EmbeddingLimits::default() });
        self.media = Some(Arc::new(media));
        self
    }

    /// The model with a layer that drafts for it with its hidden values. Where the layer has all of them it is always right.
    #[must_use]
    pub fn with_prediction(mut self) -> Self {
        (self.limits.hidden.all_rows, self.limits.hidden.max_rows) = (true, self.limits.max_batched_tokens);
        let mut layer = SimulatedModel { counters: Arc::default(), draft: None, ..self.clone() };
        layer.limits.hidden.reads = HiddenInput { of_model: HIDDEN_WIDTH, own: 0 };
        self.draft = Some(Arc::new(layer));
        self
    }

    /// The model as one that denoises blocks of this many tokens. How many steps a block takes depends on the text before it.
    #[must_use]
    pub fn with_blocks(mut self, tokens: usize) -> Self {
        self.denoising = Some(DenoisingRule {
            tokens,
            max_steps: 8,
            least_temperature: 0.4,
            greatest_temperature: 0.8,
            entropy_bound: 0.1,
            stable_steps: 1,
            confident_entropy: 0.005,
        });
        self.limits.canvas = Some(CanvasLimits { tokens, width: HIDDEN_WIDTH });
        self.limits.hidden = HiddenLimits::default();
        self.limits.max_logits_rows = 2 * tokens;
        self.limits.max_batched_tokens = self.limits.max_batched_tokens.max(4 * tokens);
        self
    }

    /// The memory of an engine.
    #[must_use]
    pub fn memory(&self) -> MemoryPlan {
        let kv_bytes = (self.limits.kv_blocks * BLOCK_TOKENS * size_of::<u64>()) as u64;
        let used = MemoryBreakdown { weights: self.weights_bytes, kv: kv_bytes, ..MemoryBreakdown::default() };
        let pool = Pool { memory: MemoryId::Host, used, block_bytes: BlockBytes::default(), available_bytes: None };
        MemoryPlan {
            kv_blocks: self.limits.kv_blocks,
            context_tokens: self.limits.context_tokens,
            ..MemoryPlan::of_pools(vec![pool])
        }
    }

    /// A new engine.
    #[must_use]
    pub fn engine(&self) -> SimulatedEngine {
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        SimulatedEngine {
            kv: vec![Slot::default(); self.limits.kv_blocks * BLOCK_TOKENS],
            states: vec![0; self.limits.state_slots],
            model: self.clone(),
            _live: LiveBytes::new(self.memory().total_bytes(), &self.counters),
        }
    }
}

impl DraftModel for SimulatedModel {
    fn load(&self, _cancel: &LoadCancel) -> Result<Box<dyn Engine>, SourceError> {
        Ok(Box::new(self.engine()))
    }
}

impl ModelSource for SimulatedModel {
    type Engine = SimulatedEngine;

    fn load(
        &self,
        _cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<SimulatedEngine>, SourceError> {
        progress(LoadProgress { done_bytes: 1, total_bytes: 1 });
        let memory = self.memory();
        let card = ModelCard {
            file_format: "gguf",
            name: "simulated".into(),
            architecture: "simulated".into(),
            n_params: 0,
            size_bytes: self.weights_bytes,
            quantization: "none".into(),
            context_train: self.limits.context_tokens,
            license: None,
            layers: Vec::new(),
            residuals: Vec::new(),
            prediction: None,
            embedding: self.embedding(),
            labels: self.labels.clone(),
            rerank_template: None,
            denoising: self.denoising,
            sampling: RecommendedSampling { stated: self.sampling, ..RecommendedSampling::default() },
            stop: Vec::new(),
            system: None,
        };
        let engine = self.engine();
        let (tokenizer, chat_template) = (self.tokenizer.clone(), self.chat_template.clone());
        Ok(LoadedModel {
            engine,
            tokenizer,
            chat_template,
            experts: None,
            card,
            memory,
            files: ModelFiles::default(),
            adapters: None,
        })
    }

    fn draft_model(&self) -> Option<Arc<dyn DraftModel>> {
        self.draft.clone().map(|draft| draft as Arc<dyn DraftModel>)
    }

    fn media_model(&self) -> Option<Arc<dyn MediaModel>> {
        self.media.clone().map(|media| media as Arc<dyn MediaModel>)
    }

    fn content(&self) -> Option<String> {
        Some("simulated".to_owned())
    }

    fn host(&self) -> EngineHost {
        self.host
    }
}

impl SimulatedModel {
    /// Its embeddings: those of the last token, or the mean where rows see later rows. A model without rows of logits generates
    /// no text.
    fn embedding(&self) -> EmbeddingSpec {
        let HiddenLimits { width, whole_sequences, .. } = self.limits.hidden;
        let pooling = if whole_sequences { Pooling::Mean } else { Pooling::Last };
        let classes = (!self.labels.is_empty()).then_some(ClassScores::Softmax);
        let is_only = self.limits.max_logits_rows == 0;
        EmbeddingSpec { pooling, width, is_only, relevance: self.relevance, classes, attention: None }
    }
}

/// Hidden values of a row.
const HIDDEN_WIDTH: usize = 8;

/// An engine that computes hashes instead of logits.
pub struct SimulatedEngine {
    model: SimulatedModel,
    /// For each position of each block.
    kv: Vec<Slot>,
    /// For each slot of recurrent state, what takes the place of the state: the hash of all tokens.
    states: Vec<u64>,
    _live: LiveBytes,
}

/// What takes the place of the keys and values of a token.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The hash of all tokens up to this one.
    hash: u64,
    token: TokenId,
}

impl Slot {
    const BYTES: usize = size_of::<u64>() + size_of::<TokenId>();

    fn write(&self, out: &mut [u8]) {
        let (hash, token) = out.split_at_mut(size_of::<u64>());
        hash.copy_from_slice(&self.hash.to_le_bytes());
        token.copy_from_slice(&self.token.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        let (hash, token) = bytes.split_at(size_of::<u64>());
        let hash = u64::from_le_bytes(hash.try_into().expect("eight bytes"));
        Slot { hash, token: TokenId::from_le_bytes(token.try_into().expect("four bytes")) }
    }
}

impl Engine for SimulatedEngine {
    fn limits(&self) -> &EngineLimits {
        &self.model.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let counters = &self.model.counters;
        let number = counters.steps.fetch_add(1, Ordering::Relaxed);
        counters.rows.fetch_add(step.rows() as u64, Ordering::Relaxed);
        counters.sequences.fetch_add(step.sequences.len() as u64, Ordering::Relaxed);
        self.validate(&step)?;
        let fault = self.model.faults.as_ref().and_then(|faults| faults(number, &step));
        match fault {
            // A panic without the hook, which would print thousands of messages.
            Some(Fault::Panic) => std::panic::resume_unwind(Box::new("injected")),
            Some(Fault::DeviceLost) => return Err(EngineError::DeviceLost("injected".into())),
            Some(Fault::InvalidStep) => return Err(invalid(&step, "injected".into())),
            Some(Fault::AwaitExperts) => {
                let job = ExpertJob { step: step.id, layer: 0, hidden: Vec::new(), routes: Vec::new(), n_routes: 0 };
                return Ok(Progress::AwaitExperts(job));
            }
            Some(Fault::NotANumber | Fault::Slow(_)) | None => {}
        }
        let mut logits = Vec::with_capacity(step.logits_rows() * self.model.limits.vocab_size);
        let (mut hidden, mut sampled, mut denoised) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in &step.sequences {
            let start = logits.len();
            if let Some(canvas) = &sequence.canvas {
                let is_usable = fault != Some(Fault::NotANumber);
                self.denoise(sequence, canvas, &mut hidden, &mut denoised);
                denoised.iter_mut().filter(|_| !is_usable).for_each(|row| row.sampled = SampledToken::NotFinite(0));
                continue;
            }
            self.compute(sequence, &mut logits, &mut hidden);
            if fault == Some(Fault::NotANumber) {
                logits[start..].fill(f32::NAN);
                hidden.fill(f32::NAN);
            }
            if self.model.samples && logits.len() > start {
                sampled.push(sample(sequence.logits, start, &mut logits));
            }
        }
        let rows = u32::try_from(step.rows()).unwrap_or(u32::MAX);
        let mut elapsed = self.model.step_time + self.model.row_time * rows;
        if let Some(Fault::Slow(longer)) = fault {
            elapsed += longer;
        }
        if self.model.host == EngineHost::Thread {
            // On a thread the time has to pass for real.
            std::thread::sleep(elapsed);
        }
        let ops = if self.model.profile_ops { self.ops(elapsed) } else { Vec::new() };
        Ok(Progress::Done(StepOutput { logits, hidden, denoised, sampled, elapsed, ops, ..StepOutput::empty(step.id) }))
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        Err(EngineError::InvalidStep { step: result.step, reason: "no step waits for experts".into() })
    }

    fn cache_layout(&self) -> Option<CacheLayout> {
        let state = if self.states.is_empty() { 0 } else { size_of::<u64>() };
        let bytes = UnitBytes { block: BLOCK_TOKENS * Slot::BYTES, state };
        Some(CacheLayout { bytes, description: "simulated".into() })
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        for (unit, out) in copies {
            match unit {
                CacheUnit::Block(block) => {
                    let slots = &self.kv[*block as usize * BLOCK_TOKENS..][..BLOCK_TOKENS];
                    out.chunks_exact_mut(Slot::BYTES).zip(slots).for_each(|(out, slot)| slot.write(out));
                }
                CacheUnit::State(slot) => out.copy_from_slice(&self.states[*slot as usize].to_le_bytes()),
            }
        }
        Ok(())
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        for (unit, content) in contents {
            match unit {
                CacheUnit::Block(block) => {
                    let slots = &mut self.kv[*block as usize * BLOCK_TOKENS..][..BLOCK_TOKENS];
                    let contents = content.chunks_exact(Slot::BYTES);
                    slots.iter_mut().zip(contents).for_each(|(slot, bytes)| *slot = Slot::read(bytes));
                }
                CacheUnit::State(slot) => {
                    self.states[*slot as usize] = u64::from_le_bytes((*content).try_into().expect("eight bytes"));
                }
            }
        }
        Ok(())
    }
}

/// Samples from the row at `start` if a token is wanted, and removes the row.
fn sample(wanted: LogitsWanted, start: usize, logits: &mut Vec<f32>) -> Option<SampledToken> {
    let LogitsWanted::Token(params) = wanted else { return None };
    let sampled = choose_by_row(&logits[start..], &params);
    logits.truncate(start);
    Some(sampled)
}

fn invalid(step: &Step, reason: String) -> EngineError {
    EngineError::InvalidStep { step: step.id, reason }
}

impl SimulatedEngine {
    /// Checks a step against the limits, as a real engine does.
    fn validate(&self, step: &Step) -> Result<(), EngineError> {
        let limits = &self.model.limits;
        let counts = [
            ("rows", step.rows(), limits.max_batched_tokens),
            ("sequences", step.sequences.len(), limits.max_sequences),
            ("rows of logits", step.logits_rows(), limits.max_logits_rows),
            ("rows of hidden values", step.hidden_rows(), limits.hidden.max_rows),
        ];
        for (what, count, limit) in counts {
            if count > limit {
                return Err(invalid(step, format!("it has {count} {what}, the limit is {limit}")));
            }
        }
        for sequence in &step.sequences {
            let end = sequence.first_position as usize + sequence.tokens.len();
            if sequence.tokens.is_empty() || end > limits.context_tokens {
                return Err(invalid(step, format!("a sequence has {} rows up to {end}", sequence.tokens.len())));
            }
            let named = sequence.state.from.iter().chain(sequence.state.to.iter().map(|(_, slot)| slot));
            if named.into_iter().any(|slot| *slot as usize >= limits.state_slots) {
                return Err(invalid(step, "a sequence uses a slot that does not exist".into()));
            }
            if limits.hidden.whole_sequences && sequence.first_position > 0 {
                return Err(invalid(step, "a sequence continues, but its rows see later rows".into()));
            }
            let reads = limits.hidden.reads.of_model > 0 || (sequence.canvas.is_some() && !sequence.hidden.is_empty());
            let given = if reads { sequence.tokens.len() * HIDDEN_WIDTH } else { 0 };
            let wants = sequence.logits.rows(sequence.tokens.len()) > 0;
            if limits.canvas.is_some() && sequence.canvas.is_some() != wants {
                return Err(invalid(step, "rows with logits are not a canvas, or a canvas returns nothing".into()));
            }
            if sequence.hidden.len() != given {
                return Err(invalid(step, format!("{} hidden values were given, not {given}", sequence.hidden.len())));
            }
            let width = limits.embeddings.map_or(0, |limits| limits.values());
            let is_given = |rows: &EmbeddingRows| {
                width > 0
                    && rows.first + rows.range.len() <= sequence.tokens.len()
                    && rows.range.end * width <= rows.values.len()
            };
            if !sequence.embeddings.iter().all(is_given) {
                return Err(invalid(step, "the embeddings are not those of its rows".into()));
            }
            if sequence.block_table.len() * BLOCK_TOKENS < end {
                return Err(invalid(step, format!("{} blocks do not hold {end} tokens", sequence.block_table.len())));
            }
        }
        Ok(())
    }

    /// The ops of a step that took `elapsed`.
    fn ops(&self, elapsed: Duration) -> Vec<OpSpan> {
        let op = |(half, weights): (u32, &str)| OpSpan {
            op: Arc::new(OpLabel { op: "simulated", weights: weights.into(), layer: Some(half) }),
            start: elapsed / 2 * half,
            elapsed: elapsed / 2,
            cost: Cost { memory_bytes: self.model.weights_bytes / 2, ..Cost::default() },
        };
        [(0, "first"), (1, "second")].map(op).to_vec()
    }

    fn compute(&mut self, sequence: &SequenceRows, logits: &mut Vec<f32>, hidden: &mut Vec<f32>) {
        let slot = |position: usize| {
            sequence.block_table[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
        };
        let wanted = sequence.logits.rows(sequence.tokens.len());
        let returned = sequence.hidden_rows();
        let mut given = sequence.hidden.chunks_exact(HIDDEN_WIDTH).map(hash_of);
        let inputs = self.inputs(sequence);
        let mut state = sequence.state.from.map_or(0, |slot| self.states[slot as usize]);
        for (row, &token) in sequence.tokens.iter().enumerate() {
            let position = sequence.first_position as usize + row;
            let before = position.checked_sub(1).map_or(Slot::default(), |previous| self.kv[slot(previous)]);
            // With wrong state the text is wrong, and so it is with wrong keys and values. A layer of the model needs those of
            // the position before, unless it sees none.
            let given = given.next();
            let is_wrong = !self.states.is_empty() && state != before.hash
                || given.is_some_and(|given| position > 0 && given != before.hash);
            let hash = mix(given.unwrap_or(before.hash) ^ inputs[row]) ^ u64::from(is_wrong);
            state = hash;
            for (_, slot) in sequence.state.to.iter().filter(|(rows, _)| *rows as usize == row + 1) {
                self.states[*slot as usize] = state;
            }
            self.kv[slot(position)] = Slot { hash, token };
            if returned.contains(&row) {
                hidden.extend(hidden_of(hash).take(self.model.limits.hidden.width));
            }
            if row + wanted >= sequence.tokens.len() {
                let repeats = self.model.repeats && !hash.is_multiple_of(8);
                // Few texts of two tokens differ in three bits each, so some soon occurs again.
                let last_two = mix(u64::from(before.token % 8) << 32 | u64::from(token % 8));
                self.push_logits(hash, if repeats { last_two } else { hash }, logits);
            }
        }
    }

    /// What takes the place of the embedding of each row: the hash of its token or of the embedding that is given for it. Of rows
    /// that see each other it also depends on the rows behind it.
    fn inputs(&self, sequence: &SequenceRows) -> Vec<u64> {
        let mut inputs: Vec<u64> = sequence.tokens.iter().map(|&token| mix(u64::from(token) + 1)).collect();
        let width = self.model.limits.embeddings.map_or(1, |limits| limits.values());
        for EmbeddingRows { first, values, range } in &sequence.embeddings {
            let rows = values.chunks_exact(width).skip(range.start).take(range.len());
            for (input, row) in inputs[*first..].iter_mut().zip(rows) {
                *input = row.iter().fold(1, |hash, value| mix(hash ^ u64::from(value.to_bits())));
            }
        }
        if sequence.sees_later {
            let mut behind = 0;
            for input in inputs.iter_mut().rev() {
                behind = mix(behind ^ *input);
                *input ^= behind;
            }
        }
        inputs
    }

    /// Adds the rows of a canvas. After some steps their tokens follow from the text before the block and from all canvases so
    /// far, which the hidden values carry from step to step. So a canvas that is lost or of another block gives another text.
    fn denoise(
        &mut self,
        sequence: &SequenceRows,
        canvas: &Canvas,
        hidden: &mut Vec<f32>,
        denoised: &mut Vec<DenoisedRow>,
    ) {
        let slot = |position: usize| {
            sequence.block_table[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
        };
        let first = sequence.first_position as usize;
        let before = first.checked_sub(1).map_or(Slot::default(), |previous| self.kv[slot(previous)]);
        let (steps, chain) = sequence
            .hidden
            .first_chunk()
            .map_or((0, before.hash), |row: &[f32; HIDDEN_WIDTH]| (row[HIDDEN_WIDTH - 1] as u64, hash_of(row)));
        let is_settled = steps > before.hash % 4;
        let drawn = canvas.draws.iter().copied().chain([u64::from(canvas.temperature.to_bits())]);
        let seen = sequence.tokens.iter().map(|token| u64::from(*token)).chain(drawn);
        let chain = if is_settled { chain } else { seen.fold(chain, |hash, value| mix(hash ^ mix(value + 1))) };
        let of_row = |row: usize, salt: u64| mix(chain ^ mix(salt) ^ row as u64);
        for row in 0..sequence.tokens.len() {
            let sampled = self.token_of(of_row(row, canvas.draws[row]));
            denoised.push(DenoisedRow {
                best: self.token_of(of_row(row, 0)),
                sampled: SampledToken::Token(sampled),
                entropy: if is_settled { 0.001 } else { (of_row(row, 1) >> 40) as f32 / (1 << 26) as f32 },
            });
            hidden.extend(hidden_of(chain).take(HIDDEN_WIDTH - 1).chain([(steps + 1) as f32]));
            self.kv[slot(first + row)] = Slot { hash: of_row(row, 2), token: sampled };
        }
    }

    /// A token that follows from a hash: one of the output, or the end of the text.
    fn token_of(&self, hash: u64) -> TokenId {
        let ends = self.model.tokenizer.end_of_generation();
        match ends.first().filter(|_| hash.is_multiple_of(self.model.end_one_in.max(1))) {
            Some(end) => *end,
            None => self.model.output_tokens[mix(hash) as usize % self.model.output_tokens.len()],
        }
    }

    /// Adds a row of logits that follows from `choice`. Whether the text ends follows from `hash`.
    fn push_logits(&self, hash: u64, choice: u64, logits: &mut Vec<f32>) {
        let start = logits.len();
        logits.resize(start + self.model.limits.vocab_size, -20.0);
        let row = &mut logits[start..];
        for &token in &*self.model.output_tokens {
            row[token as usize] = (mix(choice ^ u64::from(token)) >> 40) as f32 / (1 << 22) as f32;
        }
        if hash.is_multiple_of(self.model.end_one_in.max(1)) {
            for &token in self.model.tokenizer.end_of_generation() {
                row[token as usize] = 20.0;
            }
        }
    }
}

/// The hidden values of a row with this hash, which has 16 bits in each of the first four.
fn hidden_of(hash: u64) -> impl Iterator<Item = f32> {
    let part = move |index: usize| (hash >> (16 * index)) as u16;
    let rest = move |index: usize| (mix(hash ^ index as u64) >> 48) as u16;
    (0..HIDDEN_WIDTH).map(move |index| f32::from(if index < 4 { part(index) } else { rest(index) }) / 32_768.0 - 1.0)
}

/// The hash of a row with these hidden values.
fn hash_of(hidden: &[f32]) -> u64 {
    let part = |index: usize| (((hidden[index] + 1.0) * 32_768.0) as u64) << (16 * index);
    (0..4).map(part).sum()
}

/// The SplitMix64 finaliser (Steele et al. 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
