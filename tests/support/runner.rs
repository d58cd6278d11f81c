//! Runs sequences through an engine without the actors: block tables, chunks and shared steps.

use std::path::Path;

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, Engine, ExpertCounts, LogitsWanted, Progress, SequenceRows, SequenceState, SlotId, Step,
    StepId, StepOutput, TokenId,
};
use cuelight_engine::format::gguf::{Gguf, Metadata};
use cuelight_engine::load::{ActivationBits, ComputeDevice, CpuExperts, Kernel, KvType, LoadOptions, plan};

/// How to run a model.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Storage of keys and values.
    pub kv_type: KvType,
    /// The instruction set.
    pub kernel: Kernel,
    /// Number of CPU threads.
    pub threads: usize,
    /// The longest sequence in tokens.
    pub context_tokens: usize,
    /// Most sequences in a step, and most rows of logits.
    pub max_sequences: usize,
    /// The device.
    pub device: ComputeDevice,
    /// On a Vulkan device: whether a row's bits must not depend on its batch.
    pub deterministic: bool,
    /// The layers whose experts the CPU computes.
    pub cpu_experts: CpuExperts,
    /// The precision to which integer kernels round the inputs of products.
    pub activation_bits: ActivationBits,
}

/// The longest prompt for which a model with this type of cache is compared with transformers.
///
/// Where rows attend to selected positions, a rounded cache selects another one where two scores are almost equal. That changes
/// the row, by up to 2 nat in these checkpoints, and longer prompts have more such rows.
pub fn longest_compared(path: &Path, kv_type: KvType) -> usize {
    const WITH_SELECTION: usize = 40;
    let gguf = Gguf::open(path).expect("the file is a checkpoint");
    let selects = gguf.metadata().iter().any(|(key, _)| key.ends_with(".attention.indexer.top_k"));
    if selects && kv_type != KvType::F32 { WITH_SELECTION } else { usize::MAX }
}

/// A sequence in an engine's KV cache.
#[derive(Debug, Default)]
pub struct Sequence {
    length: usize,
    block_table: Vec<BlockId>,
    slot: Option<SlotId>,
}

/// One sequence of a step: the tokens to append and the requested output.
pub type RunnerRows<'a> = (&'a mut Sequence, &'a [TokenId], LogitsWanted);

/// Rows of logits.
pub type Rows = Vec<Vec<f32>>;

/// An engine and its free KV blocks.
pub struct Runner<E: Engine> {
    engine: E,
    free: Vec<BlockId>,
    /// Free slots for recurrent state.
    free_slots: Vec<SlotId>,
    next_step: u64,
    /// The counts of the device's expert cache, summed over all steps.
    pub experts: ExpertCounts,
}

/// Loads the model at `path`.
pub fn load(path: &Path, setup: Setup) -> Runner<impl Engine> {
    let options = LoadOptions {
        context_tokens: Some(setup.context_tokens),
        max_sequences: setup.max_sequences,
        max_batched_tokens: 512,
        kv_type: setup.kv_type,
        threads: setup.threads,
        kernel: setup.kernel,
        device: setup.device.into(),
        deterministic: setup.deterministic,
        cpu_experts: setup.cpu_experts,
        activation_bits: setup.activation_bits,
        ..LoadOptions::new(path)
    };
    let engine = plan(&options)
        .and_then(|plan| plan.load_engine(&mut |_| {}))
        .unwrap_or_else(|error| panic!("{} does not load: {error}", path.display()));
    Runner::new(engine)
}

impl<E: Engine> Runner<E> {
    /// A runner whose blocks are all free.
    pub fn new(engine: E) -> Self {
        let blocks = engine.limits().kv_blocks as BlockId;
        // Alternately from both ends, so that no sequence has adjacent blocks.
        let free = (0..blocks).map(|i| if i % 2 == 0 { i / 2 } else { blocks - 1 - i / 2 }).collect();
        let free_slots = (0..engine.limits().state_slots as SlotId).collect();
        Runner { engine, free, free_slots, next_step: 0, experts: ExpertCounts::default() }
    }

    /// Runs one step and returns the requested rows of each sequence.
    pub fn step(&mut self, shares: &mut [RunnerRows<'_>]) -> Vec<Rows> {
        let output = self.run(shares);
        let vocab_size = self.engine.limits().vocab_size;
        let mut rows = output.logits.chunks_exact(vocab_size).map(<[f32]>::to_vec);
        let result =
            shares.iter().map(|(_, tokens, wanted)| rows.by_ref().take(wanted.rows(tokens.len())).collect()).collect();
        assert!(rows.next().is_none(), "the step returned more rows of logits than requested");
        result
    }

    /// Runs one step and returns its output.
    pub fn run(&mut self, shares: &mut [RunnerRows<'_>]) -> StepOutput {
        let sequences = shares.iter_mut().map(|share| self.append(share)).collect();
        let step = Step { id: StepId(self.next_step), sequences };
        self.next_step += 1;
        match self.engine.begin(step).unwrap_or_else(|error| panic!("{error}")) {
            Progress::Done(output) => {
                self.experts = self.experts + output.experts;
                output
            }
            Progress::AwaitExperts(job) => {
                panic!("the engine must compute the experts of layer {} itself", job.layer)
            }
        }
    }

    fn append(&mut self, (sequence, tokens, logits): &mut RunnerRows<'_>) -> SequenceRows {
        let first_position = sequence.length as u32;
        sequence.length += tokens.len();
        while sequence.block_table.len() * BLOCK_TOKENS < sequence.length {
            sequence.block_table.push(self.free.pop().expect("the KV cache is large enough for every test"));
        }
        let state = self.next_state(sequence, first_position, tokens.len() as u32);
        SequenceRows {
            tokens: tokens.to_vec(),
            first_position,
            block_table: sequence.block_table.clone(),
            state,
            logits: *logits,
            ..SequenceRows::default()
        }
    }

    /// The slots of a sequence for its next rows: by turns the slot that it has, and another one.
    fn next_state(&mut self, sequence: &mut Sequence, first_position: u32, rows: u32) -> SequenceState {
        if rows == 0 || self.engine.limits().state_slots == 0 {
            return SequenceState::default();
        }
        let from = sequence.slot;
        let slot = match from {
            Some(slot) if first_position.is_multiple_of(2) => slot,
            _ => self.free_slots.pop().expect("there are slots for every test"),
        };
        // The slot is free once the step has run, before the next step is formed.
        self.free_slots.splice(0..0, from.filter(|from| *from != slot));
        sequence.slot = Some(slot);
        SequenceState { from, to: vec![(rows, slot)] }
    }

    /// Appends `tokens` in steps of at most `chunk` tokens and returns the logits of every row.
    pub fn feed(&mut self, sequence: &mut Sequence, tokens: &[TokenId], chunk: usize) -> Rows {
        let limits = self.engine.limits();
        let chunk = chunk.min(limits.max_batched_tokens).min(limits.max_logits_rows);
        let mut rows = Rows::new();
        for piece in tokens.chunks(chunk) {
            rows.extend(self.step(&mut [(&mut *sequence, piece, LogitsWanted::All)]).remove(0));
        }
        rows
    }

    /// Frees a sequence's blocks.
    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.block_table);
        self.free_slots.extend(sequence.slot);
    }
}

/// Log-probabilities of one row of logits, in float64.
pub fn log_probs(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let highest = f64::from(highest);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - highest).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - highest - sum.ln()).collect()
}

/// The index of the highest value; the first of equal ones.
pub fn argmax(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best as TokenId
}

/// |Δ| between each row's log-probability of the next token and the expected one.
pub fn deltas(rows: &[Vec<f32>], tokens: &[TokenId], expected: &[f64]) -> Vec<f64> {
    assert_eq!(expected.len() + 1, tokens.len(), "the fixture has a log-probability for every token except the first");
    expected
        .iter()
        .enumerate()
        .map(|(position, expected)| (log_probs(&rows[position])[tokens[position + 1] as usize] - expected).abs())
        .collect()
}

/// Compares rows of logits bit by bit.
#[track_caller]
pub fn assert_same_bits(rows: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(rows.len(), expected.len(), "{what}: number of rows");
    for (position, (row, expected)) in rows.iter().zip(expected).enumerate() {
        let differs = row.iter().zip(expected).position(|(ours, theirs)| ours.to_bits() != theirs.to_bits());
        if let Some(token) = differs {
            panic!("{what}: position {position}, token {token}: {} instead of {}", row[token], expected[token]);
        }
    }
}

/// The mean of some values; NaN if any value is.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The largest of some values; NaN if any value is.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, &value| if value > most || value.is_nan() { value } else { most })
}

/// The SHA-256 of a file in hexadecimal.
pub fn sha256(path: &Path) -> String {
    use sha2::{Digest, Sha256};

    let mut file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = std::io::Read::read(&mut file, &mut buffer).unwrap_or_else(|error| panic!("{error}"));
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
