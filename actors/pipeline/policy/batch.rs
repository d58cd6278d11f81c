//! Forms the next step: decode rows, prompt rows ([`prompts`](super::prompts)), and the blocks for them.

use cuelight_engine::engine::{BlockId, HiddenRows, LogitsWanted, SequenceRows, SequenceState, Step, StepId};

use super::drafts::MemberDraft;
use super::kv_blocks::BlockManager;
use super::prompt_time::Charge;
use super::residency::{AdmissionOutcome, Victims};
use super::sequence::{OutputRowsLeft, PendingToken, Rank, ScheduledRows, Sequence};
use super::step_record::{Member, PromptRows, StepRecord};
use super::step_time::Work;
use super::{AwaitedToken, CanvasState, CanvasTask, Draft, Effect, PlannedStep, Policy, SampleTask};
use crate::core::request::{MAX_STEP_TOKENS, RequestId};

/// A step that is being formed, and the capacity left in it.
pub(super) struct Batch {
    id: StepId,
    pub rows_left: usize,
    pub sequences_left: usize,
    logits_rows_left: usize,
    hidden_rows_left: usize,
    /// Rows that drafts and short prompts leave to the media item of a running prompt, all of whose rows must be in one step.
    pub media_rows: usize,
    /// Whether the drafter needs the hidden values of sequences that it drafts for.
    drafter_reads_hidden: bool,
    /// Minimum number of prompt rows, if any prompt is ready, whatever the time.
    pub least_prompt_rows: usize,
    /// Prompt rows added so far.
    pub prompt_rows: usize,
    /// Whether the step takes as many prompt rows as it can hold, because the device is saturated.
    pub is_saturated: bool,
    /// The time that the prompt rows are expected to take from decode rows.
    pub charge: Option<Charge>,
    pub work: Work,
    pub members: Vec<Member>,
    planned: PlannedStep,
}

impl Batch {
    pub fn is_full(&self) -> bool {
        self.rows_left == 0 || self.sequences_left == 0
    }

    /// Number of rows that drafts may still use.
    pub fn draft_rows_left(&self) -> usize {
        self.rows_left.saturating_sub(self.media_rows).min(self.logits_rows_left)
    }

    /// Number of rows that canvases may still use.
    pub fn canvas_rows_left(&self) -> usize {
        self.rows_left.min(self.logits_rows_left)
    }

    /// Number of rows of a sequence that may still be added if all of them have to be in the step.
    fn hidden_rows_left(&self, sequence: &Sequence) -> usize {
        match sequence.hidden {
            Some(HiddenRows::All) => self.hidden_rows_left,
            Some(_) if self.hidden_rows_left == 0 => 0,
            _ => usize::MAX,
        }
    }

    /// Adds the rows of a draft to a member that has one row, and the blocks for them.
    pub fn extend(
        &mut self,
        sequence: &mut Sequence,
        draft: Draft,
        member_draft: MemberDraft,
        window_table: Vec<BlockId>,
    ) {
        let (id, drafted) = (sequence.rank.id, draft.tokens.len());
        let Some(index) = self.members.iter().position(|member| member.id == id) else { return };
        let Some(task) = self.planned.tasks.iter_mut().find(|task| task.id == id) else { return };
        let (member, rows) = (&mut self.members[index], &mut self.planned.step.sequences[index]);
        self.work.add(Work::of(member.to, drafted));
        member.to += drafted;
        member.draft = Some(member_draft);
        rows.tokens.extend(&draft.tokens);
        rows.rope_positions.extend(sequence.media.rope_positions(member.to - drafted..member.to));
        rows.block_table = block_table(sequence, member.to);
        rows.window_table = window_table;
        rows.state.to.extend((2..).zip(&sequence.state.drafted).map(|(rows, slot)| (rows, slot.id())));
        rows.logits = LogitsWanted::All;
        task.rows += drafted;
        task.draft = Some(draft);
        self.rows_left -= drafted;
        self.logits_rows_left -= drafted;
        self.hidden_rows_left -= if rows.returns_hidden { drafted } else { 0 };
        sequence.planned += drafted;
        sequence.unverified = drafted;
    }

    /// Adds the next rows of a sequence that has the blocks for them.
    fn push(
        &mut self,
        sequence: &mut Sequence,
        scheduled: ScheduledRows,
        (state, window_table): (SequenceState, Vec<BlockId>),
    ) {
        let ScheduledRows { rows, logits } = scheduled;
        let (id, from, to) = (sequence.rank.id, sequence.planned, sequence.planned + rows);
        let (logits_rows, hidden_rows) = (logits.rows(rows), logits.hidden_rows(rows));
        let samples = logits_rows > 0 && to == sequence.length();
        self.rows_left -= rows;
        self.sequences_left -= 1;
        self.logits_rows_left -= logits_rows;
        let may_draft = sequence.speculates && sequence.media.is_empty();
        let returns_hidden = self.drafter_reads_hidden && may_draft && sequence.hidden.is_none();
        self.hidden_rows_left -= if returns_hidden { rows } else { hidden_rows.len() };
        self.work.add(Work::of(from, rows));
        let PlannedStep { step, ids, tasks, awaits } = &mut self.planned;
        let tokens = match sequence.awaits_token_from() {
            None => sequence.tokens[from..to].to_vec(),
            Some(source) => {
                awaits.push(AwaitedToken { sequence: step.sequences.len(), id, from: source });
                vec![0]
            }
        };
        ids.push(id);
        step.sequences.push(SequenceRows {
            adapter: sequence.adapter.clone(),
            tokens,
            first_position: u32::try_from(from).expect("a context is shorter than 2^32 tokens"),
            block_table: block_table(sequence, to),
            window_table,
            state,
            logits: if samples && logits == LogitsWanted::Last { sequence.next_token() } else { logits },
            returns_hidden,
            second_text: sequence.second_text,
            embeddings: sequence.media.rows_at(from..to),
            rope_positions: sequence.media.rope_positions(from..to),
            sees_later: sequence.next_media_rows().is_some(),
            ..SequenceRows::default()
        });
        let has_task = logits_rows + hidden_rows.len() > 0;
        self.members.push(Member { id, from, to, task: has_task, samples, draft: None, is_canvas: false });
        if has_task {
            let scores_prompt = logits == LogitsWanted::All;
            let first_position = if logits_rows > 0 { to - logits_rows } else { from + hidden_rows.start };
            let (rows, hidden_rows) = (logits_rows, hidden_rows.len());
            let (draft, canvas) = (None, None);
            tasks.push(SampleTask { id, rows, first_position, scores_prompt, hidden_rows, samples, draft, canvas });
        }
        sequence.planned = to;
        sequence.in_flight += 1;
        if samples {
            sequence.pending.push(PendingToken { step: self.id, position: to });
        }
        sequence.last_step = self.id;
    }

    /// Adds the canvas of a sequence that has the blocks for it. None of its rows counts as computed.
    pub fn push_canvas(&mut self, sequence: &mut Sequence, canvas: CanvasState) {
        let Some(denoising) = sequence.denoising else { return };
        let CanvasState { block, hidden } = canvas;
        let (id, from, rows) = (sequence.rank.id, sequence.planned, block.tokens.len());
        self.rows_left -= rows;
        self.sequences_left -= 1;
        self.logits_rows_left -= rows;
        self.work.add(Work::of(from, rows));
        let PlannedStep { step, ids, tasks, .. } = &mut self.planned;
        ids.push(id);
        step.sequences.push(SequenceRows {
            adapter: sequence.adapter.clone(),
            tokens: block.tokens.clone(),
            first_position: u32::try_from(from).expect("a context is shorter than 2^32 tokens"),
            block_table: block_table(sequence, from + rows),
            logits: LogitsWanted::All,
            hidden: hidden.to_vec(),
            canvas: Some(denoising.canvas(&block)),
            ..SequenceRows::default()
        });
        self.members.push(Member { id, from, to: from, task: true, samples: false, draft: None, is_canvas: true });
        tasks.push(SampleTask {
            id,
            rows: 0,
            first_position: from,
            scores_prompt: false,
            hidden_rows: rows,
            samples: false,
            draft: None,
            canvas: Some(CanvasTask { denoising, block }),
        });
        sequence.in_flight += 1;
        sequence.last_step = self.id;
    }
}

/// The blocks that hold the first `tokens` tokens of a sequence.
fn block_table(sequence: &Sequence, tokens: usize) -> Vec<BlockId> {
    sequence.blocks[..BlockManager::blocks_for(tokens)].iter().map(|block| block.id()).collect()
}

impl Policy {
    /// Forms a step and returns whether it has any rows.
    pub(super) fn form_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.is_suspect_in_flight() {
            // A suspect runs alone until it is cleared or fails. Otherwise it and another sequence could preempt each other
            // forever.
            return false;
        }
        let mut batch = self.empty_batch();
        match self.first_suspect() {
            Some(suspect) => self.add_suspect(suspect, &mut batch, effects),
            None if !self.admit_underserved(effects) => return false,
            None => {
                self.add_decodes(&mut batch, effects);
                self.add_canvases(&mut batch, effects);
                self.add_drafts(&mut batch);
                self.add_prompts(&mut batch, effects);
            }
        }
        if batch.members.is_empty() {
            return false;
        }
        let Batch { id, work, members, prompt_rows, is_saturated, charge, mut planned, .. } = batch;
        for member in &members {
            let sequence = self.sequences.get_mut(&member.id).expect("a member of a new step exists");
            if !std::mem::replace(&mut sequence.started, true) {
                self.queued.give_back(&sequence.client, sequence.prompt_tokens);
                effects.push(Effect::Started { id: member.id, cached_tokens: member.from });
            }
        }
        let drafted: usize = members.iter().filter_map(|member| Some(member.draft?.drafted)).sum();
        self.fair_queue.computed(work.rows - drafted);
        self.next_step = StepId(id.0 + 1);
        let prompt_rows = PromptRows::of(prompt_rows, is_saturated, charge);
        self.steps.insert(id, StepRecord::new(members, work, prompt_rows));
        planned.step.id = id;
        self.store_evicted(effects);
        effects.push(Effect::Run(planned));
        true
    }

    fn empty_batch(&self) -> Batch {
        Batch {
            id: self.next_step,
            rows_left: self.limits.max_batched_tokens,
            sequences_left: self.limits.max_sequences,
            logits_rows_left: self.limits.max_logits_rows,
            hidden_rows_left: self.limits.hidden.max_rows,
            media_rows: self.next_media_rows(),
            drafter_reads_hidden: self.drafter_ready && self.limits.hidden.all_rows,
            least_prompt_rows: 0,
            prompt_rows: 0,
            is_saturated: false,
            charge: None,
            work: Work::default(),
            members: Vec::new(),
            planned: PlannedStep { step: Step::default(), ..PlannedStep::default() },
        }
    }

    /// The rows of the media item that is next in the first running prompt with one.
    fn next_media_rows(&self) -> usize {
        self.ready().find_map(Sequence::next_media_rows).unwrap_or(0)
    }

    fn first_suspect(&self) -> Option<Rank> {
        let is_free = |sequence: &Sequence| sequence.is_suspect() && sequence.is_admissible();
        self.sequences.values().filter(|sequence| is_free(sequence)).map(|sequence| sequence.rank).min()
    }

    fn is_suspect_in_flight(&self) -> bool {
        self.sequences.values().any(|sequence| sequence.is_suspect() && sequence.in_flight > 0)
    }

    /// Adds a suspect as the only sequence of the step, so that the cause of a failure is known.
    fn add_suspect(&mut self, rank: Rank, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let victims = Victims::AllExcept(rank.id);
        if self.running.contains(&rank) || self.admit(rank, victims, effects) == AdmissionOutcome::Admitted {
            if self.sequences[&rank.id].wants_canvas() {
                return self.add_canvas(rank, victims, batch, effects);
            }
            self.add(rank.id, usize::MAX, victims, batch, effects);
        }
    }

    /// Adds the rows of each decoding sequence. When not all fit, the least recently served ones are added.
    fn add_decodes(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let decoding = self.ready().filter(|sequence| sequence.is_answering());
        let mut order: Vec<_> = decoding.map(|sequence| (sequence.last_step, sequence.rank)).collect();
        order.sort_unstable();
        for (_, rank) in order {
            if batch.is_full() {
                return;
            }
            // An earlier sequence of this loop may have preempted it.
            if self.running.contains(&rank) {
                self.add(rank.id, MAX_STEP_TOKENS, Victims::Behind(rank), batch, effects);
            }
        }
    }

    /// Running sequences that may take part in the step, in rank order.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Sequence> {
        let running = self.running.iter().map(|rank| &self.sequences[&rank.id]);
        running.filter(|sequence| sequence.is_ready() && !sequence.is_suspect())
    }

    /// Adds at most `rows` rows of a running sequence to the step and allocates the blocks for them.
    pub(super) fn add(
        &mut self,
        id: RequestId,
        rows: usize,
        victims: Victims,
        batch: &mut Batch,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = &self.sequences[&id];
        let rows = if self.limits.hidden.whole_sequences {
            // All of its rows, or none.
            let fits = sequence.remaining() <= batch.rows_left.min(batch.hidden_rows_left(sequence));
            if fits { sequence.remaining() } else { return }
        } else if let Some(rows) = sequence.next_media_rows() {
            rows.min(batch.rows_left)
        } else {
            rows.min(batch.rows_left).min(self.config.prefill_chunk_tokens.max(1))
        };
        let rows = rows.min(self.rows_with_windows(sequence));
        let left = OutputRowsLeft { logits: batch.logits_rows_left, hidden: batch.hidden_rows_left };
        let Some(scheduled) = sequence.schedule(rows, left) else { return };
        let blocks = BlockManager::blocks_for(sequence.planned + scheduled.rows);
        let missing = blocks.saturating_sub(sequence.blocks.len());
        if self.make_available(missing, victims, effects) {
            self.grow(id, blocks);
            let Some(state) = self.plan_state(id, scheduled.rows) else { return };
            self.extend_window(id, scheduled.rows);
            let sequence = &self.sequences[&id];
            let window_table = self.window_table(sequence, sequence.planned + scheduled.rows);
            batch.push(self.sequence_mut(id), scheduled, (state, window_table));
        }
    }
}
