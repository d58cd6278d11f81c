//! Samples one sequence: logits in, events for its client out.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::constraint::{ConstraintError, TokenMask};
use cuelight_engine::embedding::Pooler;
use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::{StreamDecoder, Tokenizer};
use cuelight_engine::sample::{
    Alternatives, Denoised, Draw, InvalidLogits, TokenCounts, TokenSampler, position_logprobs, token_of,
};
use tokio::time::Instant;

use super::constraint::OutputConstraint;
use super::outcome::{Advance, Computed, NewToken, RequestEnd, SampleOutcome, SentToken};
use super::reasoning::{Part, Reasoning};
use super::stop::StopMatcher;
use crate::core::draft::DraftSource;
use crate::core::request::{BlockToken, Event, FinishReason, GenerationError, MAX_STEP_TOKENS, PositionLogprobs};
use crate::pipeline::journal::RequestRecord;
use crate::pipeline::policy::{CanvasState, CanvasTask, SampleTask, Verdict};

/// The sampling state of a sequence. All of it follows from the request and the tokens in its record.
pub(super) struct SequenceSampler {
    record: Arc<RequestRecord>,
    /// The number of this sampler among those that the request had.
    owner: u32,
    /// Maximum number of tokens to generate, limited by the context.
    max_tokens: usize,
    counts: TokenCounts,
    generated: usize,
    decoder: StreamDecoder,
    stop: StopMatcher,
    /// The reasoning before the answer, when there may be some.
    reasoning: Option<Reasoning>,
    constraint: Option<OutputConstraint>,
    /// Log-probabilities of the prompt tokens known so far. `None` once they are sent, or when not requested.
    prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    /// Collects the embedding of the prompt, when the request is for that.
    pooler: Option<Pooler>,
    /// Whether a task waits for its client to read.
    pub awaits_client: bool,
    /// Total time spent on converting its tokens to text. `None` unless tracing is on.
    pub detokenise_time: Option<Duration>,
}

impl SequenceSampler {
    /// The state of a sequence that has generated no tokens.
    pub fn new(record: Arc<RequestRecord>, context_tokens: usize, tokenizer: &Tokenizer) -> Self {
        let request = &record.request;
        let context_left = context_tokens.saturating_sub(request.prompt.len());
        let max_tokens = request.stop.max_tokens.min(context_left);
        let mut counts = TokenCounts::new(&request.prompt);
        if let Some(penalty) = &request.sampling.repeats {
            counts.watch_repeats(penalty, &request.prompt, |token| tokenizer.token_bytes(token, false));
        }
        SequenceSampler {
            owner: record.take_over(max_tokens),
            max_tokens,
            counts,
            generated: 0,
            decoder: StreamDecoder::continuing(),
            stop: StopMatcher::new(&request.stop.strings),
            reasoning: request.reasoning.as_ref().map(Reasoning::new),
            constraint: request.constraint.as_ref().map(OutputConstraint::new),
            prompt_logprobs: request.prompt_logprobs.map(|_| vec![None]),
            pooler: request.embedding.map(|pooling| Pooler::new(pooling, request.prompt.len())),
            detokenise_time: None,
            awaits_client: false,
            record,
        }
    }

    /// The state of a sequence after the tokens that were sent to its client. Returns the last event, too, when these
    /// tokens end the request and only its end was not sent.
    pub fn resume(record: Arc<RequestRecord>, context_tokens: usize, tokenizer: &Tokenizer) -> (Self, Option<Event>) {
        let committed = record.committed();
        let mut sequence = Self::new(record, context_tokens, tokenizer);
        if committed.prompt_is_sent {
            sequence.prompt_logprobs = None;
        }
        let mut end = None;
        for token in committed.tokens {
            let last = sequence.count(token, tokenizer);
            match sequence.advance(token, last, tokenizer) {
                Ok((_, ended)) => end = ended,
                Err(error) => return (sequence, Some(Event::Failed(unenforceable(error)))),
            }
        }
        let end = end.map(|(reason, text)| sequence.end_event(reason, text));
        (sequence, end)
    }

    /// Samples the next token from `task.rows` rows of logits of equal length, or takes the one that the engine sampled.
    pub fn sample(
        &mut self,
        task: &SampleTask,
        computed: Computed<'_>,
        sampler: &mut TokenSampler,
        tokenizer: &Tokenizer,
    ) -> SampleOutcome {
        self.try_sample(task, computed, sampler, tokenizer).unwrap_or_else(SampleOutcome::Failed)
    }

    /// Waits for the tokens that the constraint allows next.
    pub async fn settle_constraint(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            constraint.settle().await;
        }
    }

    /// The tokens that have to come next, which need no logits. None if the client wants their probabilities, or may get
    /// reasoning instead.
    fn forced_tokens(&mut self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        if self.record.request.logprobs.is_some() || !self.answers() {
            return Vec::new();
        }
        if let Some(end) = self.forced_end(tokenizer) {
            return vec![end];
        }
        self.constraint.as_mut().map(OutputConstraint::forced_tokens).unwrap_or_default()
    }

    /// The token that ends an answer to which nothing may be added.
    fn forced_end(&self, tokenizer: &Tokenizer) -> Option<TokenId> {
        let is_complete = self.answers() && self.constraint.as_ref().is_some_and(OutputConstraint::is_complete);
        is_complete.then(|| tokenizer.eos().or(tokenizer.end_of_generation().first().copied())).flatten()
    }

    /// Whether the next token belongs to the answer, and cannot begin reasoning.
    fn answers(&self) -> bool {
        let reasoning = self.reasoning.as_ref();
        reasoning.is_none_or(|reasoning| !reasoning.is_inside() && reasoning.may_begin_with().is_none())
    }

    /// Begins to compute the tokens that the constraint allows next.
    pub fn precompute_mask(&mut self) {
        if self.is_reasoning() {
            return;
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.precompute();
        }
    }

    fn is_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Reasoning::is_inside)
    }

    fn try_sample(
        &mut self,
        task: &SampleTask,
        computed: Computed<'_>,
        sampler: &mut TokenSampler,
        tokenizer: &Tokenizer,
    ) -> Result<SampleOutcome, GenerationError> {
        if let (Computed::Logits(logits), true) = (computed, task.scores_prompt) {
            let rows = logits.chunks_exact(row_length(logits, task).max(1));
            self.score_prompt(task.first_position, rows).map_err(unusable)?;
        }
        if let Computed::Hidden { values, width } = computed {
            return self.pool(task.first_position, values, width);
        }
        if !task.samples && task.canvas.is_none() {
            return Ok(SampleOutcome::Scored);
        }
        if self.max_tokens == 0 {
            return Ok(SampleOutcome::Nothing);
        }
        if let Some(canvas) = &task.canvas {
            return denoise(canvas, computed);
        }
        if let Some(token) = self.forced_before(task.first_position + 1) {
            return Ok(SampleOutcome::Known(token));
        }
        match computed {
            Computed::Sampled(sampled) => {
                let token = token_of(sampled).map_err(unusable)?;
                let newest = NewToken { token, logprobs: None, last: self.count(token, tokenizer) };
                Ok(SampleOutcome::Tokens { accepted: Vec::new(), newest })
            }
            Computed::Logits(logits) => {
                let drafted = task.draft.as_ref().map_or(&[][..], |draft| &draft.tokens);
                let row = row_length(logits, task);
                let rows = logits.get(logits.len() - row * (1 + drafted.len())..).unwrap_or_default();
                let outcome = self.sample_rows(rows, row, drafted, sampler, tokenizer)?;
                self.count_draft(task, &outcome);
                Ok(outcome)
            }
            Computed::Hidden { .. } | Computed::Denoised { .. } => Ok(SampleOutcome::Scored),
        }
    }

    /// The token at a position, if a constraint forced it while the step was computed that samples it.
    fn forced_before(&self, position: usize) -> Option<TokenId> {
        let index = position.checked_sub(self.record.request.prompt.len())?;
        (index < self.generated).then(|| self.record.committed().tokens.get(index).copied()).flatten()
    }

    /// Adds rows of hidden values to the embedding.
    fn pool(&mut self, position: usize, rows: &[f32], width: usize) -> Result<SampleOutcome, GenerationError> {
        if rows.is_empty() || rows.iter().any(|value| !value.is_finite()) {
            let reason = "the model's output is not usable: a hidden value is not a finite number";
            return Err(GenerationError::Engine(reason.into()));
        }
        let Some(pooler) = &mut self.pooler else { return Ok(SampleOutcome::Scored) };
        pooler.add(position, rows, width);
        Ok(pooler.pooled().map_or(SampleOutcome::Scored, SampleOutcome::Embedded))
    }

    /// Samples the token after each of `rows`, which have `row` logits each, as long as those before it are equal to the
    /// `drafted` ones.
    fn sample_rows(
        &mut self,
        rows: &[f32],
        row: usize,
        drafted: &[TokenId],
        sampler: &mut TokenSampler,
        tokenizer: &Tokenizer,
    ) -> Result<SampleOutcome, GenerationError> {
        let mut accepted = Vec::new();
        loop {
            let logits = rows.get(accepted.len() * row..(accepted.len() + 1) * row).unwrap_or_default();
            let token = self.sample_token(logits, sampler, tokenizer)?;
            let logprobs = self.alternatives().map(|wanted| position_logprobs(logits, token, wanted));
            let logprobs = logprobs.transpose().map_err(unusable)?;
            let last = self.count(token, tokenizer);
            if last.is_some() || drafted.get(accepted.len()) != Some(&token) {
                return Ok(SampleOutcome::Tokens { accepted, newest: NewToken { token, logprobs, last } });
            }
            let (text, end) = self.advance(token, None, tokenizer).map_err(unenforceable)?;
            accepted.push(SentToken { token, text, logprobs });
            if let Some((reason, rest)) = end {
                return Ok(SampleOutcome::Stopped { accepted, reason, rest });
            }
        }
    }

    /// The tokens whose log-probabilities are reported with each generated token, if its own is.
    fn alternatives(&self) -> Option<Alternatives<'_>> {
        let request = &self.record.request;
        request.logprobs.map(|count| match request.logprob_tokens.as_slice() {
            [] => Alternatives::MostLikely(count),
            listed => Alternatives::Listed(listed),
        })
    }

    /// Counts the tokens of a draft that the client predicted.
    fn count_draft(&self, task: &SampleTask, outcome: &SampleOutcome) {
        if let Some(draft) = task.draft.as_ref().filter(|draft| draft.source == DraftSource::Prediction) {
            let accepted = outcome.accepted();
            self.record.count_prediction(accepted, draft.tokens.len() - accepted);
        }
    }

    /// Counts a token. Returns why it is the last one, if it is.
    fn count(&mut self, token: TokenId, tokenizer: &Tokenizer) -> Option<FinishReason> {
        self.generated += 1;
        self.counts.record(token, tokenizer.token_bytes(token, false));
        match self.ends_with(token, tokenizer) {
            true => Some(FinishReason::StopToken(token)),
            false => (self.generated >= self.max_tokens).then_some(FinishReason::Length),
        }
    }

    fn ends_with(&self, token: TokenId, tokenizer: &Tokenizer) -> bool {
        if self.reasoning.as_ref().and_then(Reasoning::forced) == Some(token) {
            // The answer follows.
            return false;
        }
        let stop = &self.record.request.stop;
        let is_complete = || self.constraint.as_ref().is_some_and(OutputConstraint::is_complete);
        let may_end = !stop.ignore_eos || is_complete();
        stop.token_ids.contains(&token) || (may_end && tokenizer.end_of_generation().contains(&token))
    }

    /// Sends the result to the client and decides whether the request has ended.
    pub fn deliver(&mut self, outcome: SampleOutcome, tokenizer: &Tokenizer) -> Advance {
        self.send_prompt();
        match outcome {
            SampleOutcome::Scored | SampleOutcome::Known(_) => {
                Advance { verdict: Verdict::Unchanged, tokens: 0, forced: 0, end: None }
            }
            SampleOutcome::Nothing => self.finished(0, FinishReason::Length, String::new()),
            SampleOutcome::Embedded(vector) => {
                let end = Event::Embedded { vector, usage: self.record.usage() };
                Advance { verdict: Verdict::Ended, tokens: 0, forced: 0, end: Some(end) }
            }
            SampleOutcome::Failed(error) => Advance::failed(0, error),
            SampleOutcome::Denoised(canvas) => {
                Advance { verdict: Verdict::Denoised(canvas), tokens: 0, forced: 0, end: None }
            }
            SampleOutcome::Block(tokens) => self.deliver_block(tokens, tokenizer),
            SampleOutcome::Stopped { accepted, reason, rest } => {
                let tokens = self.send(accepted).len();
                self.finished(tokens, reason, rest)
            }
            SampleOutcome::Tokens { accepted, newest } => self.deliver_tokens(accepted, newest, tokenizer),
        }
    }

    fn deliver_tokens(&mut self, mut tokens: Vec<SentToken>, newest: NewToken, tokenizer: &Tokenizer) -> Advance {
        let sampled = tokens.len() + 1;
        let added = self.add(newest, &mut tokens, tokenizer);
        let added = added.and_then(|end| if end.is_some() { Ok(end) } else { self.add_forced(&mut tokens, tokenizer) });
        let tokens = self.send(tokens);
        let forced = tokens.len().saturating_sub(sampled);
        let advance = match added {
            Ok(Some((reason, rest))) => self.finished(tokens.len(), reason, rest),
            Ok(None) => Advance { tokens: tokens.len(), forced, verdict: Verdict::Tokens(tokens), end: None },
            Err(error) => Advance::failed(tokens.len(), unenforceable(error)),
        };
        Advance { forced, ..advance }
    }

    /// Sends the tokens of a block up to the one that ends the request.
    fn deliver_block(&mut self, block: Vec<TokenId>, tokenizer: &Tokenizer) -> Advance {
        let (mut tokens, mut ended) = (Vec::with_capacity(block.len()), Ok(None));
        for token in block {
            let last = self.count(token, tokenizer);
            ended = self.add(NewToken { token, logprobs: None, last }, &mut tokens, tokenizer);
            if !matches!(ended, Ok(None)) {
                break;
            }
        }
        let ids: Vec<TokenId> = tokens.iter().map(|sent| sent.token).collect();
        if !tokens.is_empty() {
            let tokens = tokens.into_iter().map(|SentToken { token, text, .. }| BlockToken { token, text });
            let event = Event::Block { tokens: tokens.collect() };
            self.record.commit_tokens(self.owner, [event], self.detokenise_time);
        }
        match ended {
            Ok(Some((reason, rest))) => self.finished(ids.len(), reason, rest),
            Ok(None) => Advance { tokens: ids.len(), forced: 0, verdict: Verdict::Tokens(ids), end: None },
            Err(error) => Advance::failed(ids.len(), unenforceable(error)),
        }
    }

    /// Adds the tokens that have to come next, as many as a step may have.
    fn add_forced(
        &mut self,
        tokens: &mut Vec<SentToken>,
        tokenizer: &Tokenizer,
    ) -> Result<RequestEnd, ConstraintError> {
        while tokens.len() < MAX_STEP_TOKENS {
            let forced = self.forced_tokens(tokenizer);
            if forced.is_empty() {
                break;
            }
            for token in forced.into_iter().take(MAX_STEP_TOKENS - tokens.len()) {
                let last = self.count(token, tokenizer);
                let end = self.add(NewToken { token, logprobs: None, last }, tokens, tokenizer)?;
                if end.is_some() {
                    return Ok(end);
                }
            }
        }
        Ok(None)
    }

    /// Adds a counted token to those that are sent.
    fn add(
        &mut self,
        NewToken { token, logprobs, last }: NewToken,
        tokens: &mut Vec<SentToken>,
        tokenizer: &Tokenizer,
    ) -> Result<RequestEnd, ConstraintError> {
        let (text, end) = self.advance(token, last, tokenizer)?;
        tokens.push(SentToken { token, text, logprobs });
        Ok(end)
    }

    /// Records the tokens of a step, sends them to the client, and returns them.
    fn send(&self, tokens: Vec<SentToken>) -> Vec<TokenId> {
        let ids = tokens.iter().map(|sent| sent.token).collect();
        let event = |SentToken { token, text, logprobs }| Event::Token { token, text, logprobs };
        if !tokens.is_empty() {
            self.record.commit_tokens(self.owner, tokens.into_iter().map(event), self.detokenise_time);
        }
        ids
    }

    /// The text that is certain after a token. When the token ends the request, also why, and the text held back so far.
    fn advance(
        &mut self,
        token: TokenId,
        last: Option<FinishReason>,
        tokenizer: &Tokenizer,
    ) -> Result<(String, RequestEnd), ConstraintError> {
        if let Some(reason @ FinishReason::StopToken(_)) = last {
            return Ok((String::new(), Some((reason, self.rest_at_stop_token(token, tokenizer)))));
        }
        let text = self.detokenise(tokenizer, token);
        let part = match &mut self.reasoning {
            Some(reasoning) => reasoning.accept(token, text),
            None => Part::Answer(text),
        };
        match part {
            // Stop strings end the answer, not the reasoning.
            Part::Reasoning(text) => Ok((text, last.map(|reason| (reason, self.rest())))),
            Part::Ends { reasoning, answer } => self.end_reasoning(reasoning, answer, last),
            Part::Begins { text, is_certain } => self.begin_reasoning(token, text, is_certain, last),
            Part::Undecided => {
                self.try_constraint(token)?;
                Ok((String::new(), last.map(|reason| (reason, self.rest()))))
            }
            Part::Answer(text) => {
                if let Some(constraint) = &mut self.constraint {
                    constraint.accept(token)?;
                }
                Ok(self.accept(text, last))
            }
        }
    }

    /// The text after the last token of the marker before reasoning.
    fn begin_reasoning(
        &mut self,
        token: TokenId,
        text: String,
        is_certain: bool,
        last: Option<FinishReason>,
    ) -> Result<(String, RequestEnd), ConstraintError> {
        let Some(asked) = &self.record.request.constraint else {
            return Ok((text, last.map(|reason| (reason, self.rest()))));
        };
        // A constraint that has the marker as a part of its text stays in force.
        if let (false, false, Some(constraint)) = (is_certain, asked.is_free(), &mut self.constraint)
            && constraint.mask()?.allows(token)
        {
            constraint.accept(token)?;
            if let Some(reasoning) = &mut self.reasoning {
                reasoning.answer();
            }
            return Ok(self.accept(text, last));
        }
        self.constraint = Some(OutputConstraint::new(asked));
        Ok((text, last.map(|reason| (reason, self.rest()))))
    }

    /// The text of a token that ends the reasoning, with the beginning of the answer.
    fn end_reasoning(
        &mut self,
        reasoning: String,
        answer: String,
        last: Option<FinishReason>,
    ) -> Result<(String, RequestEnd), ConstraintError> {
        if self.constraint.is_some() && !answer.trim().is_empty() {
            let reason = "a token that ends the reasoning has a part of the answer, which cannot be checked";
            return Err(ConstraintError(reason.to_owned()));
        }
        let (text, end) = self.accept(answer, last);
        Ok((reasoning + &text, end))
    }

    /// Adds a token to the constraint that may also belong to the marker before reasoning.
    fn try_constraint(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        if constraint.mask()?.allows(token) {
            return constraint.accept(token);
        }
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.rule_out_answer();
        }
        Ok(())
    }

    /// The text that was held back for a marker or an incomplete character.
    fn rest(&mut self) -> String {
        let held = self.reasoning.as_mut().map(Reasoning::take_held).unwrap_or_default();
        held + &self.decoder.finish()
    }

    /// Records the log-probabilities of the prompt's tokens. Rows that were scored already are skipped: they repeat when
    /// the sequence is recomputed.
    fn score_prompt<'a>(
        &mut self,
        first_position: usize,
        rows: impl Iterator<Item = &'a [f32]>,
    ) -> Result<(), InvalidLogits> {
        let request = &self.record.request;
        let Some(known) = &mut self.prompt_logprobs else { return Ok(()) };
        let (prompt, wanted) = (&request.prompt, Alternatives::MostLikely(request.prompt_logprobs.unwrap_or(0)));
        for (row, next) in rows.zip(first_position + 1..) {
            if next == known.len() && next < prompt.len() {
                known.push(Some(position_logprobs(row, prompt[next], wanted)?));
            }
        }
        Ok(())
    }

    /// Sends the log-probabilities of the prompt once all are known.
    fn send_prompt(&mut self) {
        let is_known = |known: &Vec<_>| known.len() == self.record.request.prompt.len();
        if self.prompt_logprobs.as_ref().is_some_and(is_known)
            && let Some(logprobs) = self.prompt_logprobs.take()
        {
            self.record.commit_prompt(self.owner, Event::Prompt { logprobs });
        }
    }

    fn sample_token(
        &mut self,
        row: &[f32],
        sampler: &mut TokenSampler,
        tokenizer: &Tokenizer,
    ) -> Result<TokenId, GenerationError> {
        if let Some(token) = self.reasoning.as_ref().and_then(Reasoning::forced).or_else(|| self.forced_end(tokenizer))
        {
            return Ok(token);
        }
        let mask = self.mask().map_err(unenforceable)?;
        let is_complete = mask.is_some() && self.constraint.as_ref().is_some_and(OutputConstraint::is_complete);
        let mut banned = if is_complete { Vec::new() } else { self.banned(tokenizer) };
        if self.constraint.is_some() && mask.is_none() {
            // The answer has to follow the reasoning.
            banned.extend(tokenizer.end_of_generation());
        }
        banned.extend(self.reasoning.as_ref().and_then(Reasoning::barred));
        let request = &self.record.request;
        let draw = Draw { seed: self.record.seed, position: (request.prompt.len() + self.generated) as u64 };
        loop {
            let token = sampler.choose(row, &request.sampling, &self.counts, &banned, mask.as_ref(), draw);
            let token = token.map_err(unusable)?;
            if !self.runs_over(token, tokenizer) {
                return Ok(token);
            }
            banned.push(token);
        }
    }

    /// Whether a token ends the reasoning and begins the answer, where a constraint would not see that beginning.
    fn runs_over(&self, token: TokenId, tokenizer: &Tokenizer) -> bool {
        let text = || String::from_utf8_lossy(tokenizer.token_bytes(token, false));
        let reasoning = self.reasoning.as_ref().filter(|_| self.constraint.is_some());
        reasoning.is_some_and(|reasoning| reasoning.runs_over(&text()))
    }

    /// The tokens that may come next. `None` when all may.
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        if self.is_reasoning() {
            return Ok(None);
        }
        let Some(constraint) = &mut self.constraint else { return Ok(None) };
        let mut mask = constraint.mask()?;
        if let Some(begin) = self.reasoning.as_ref().and_then(Reasoning::may_begin_with) {
            mask.allow(begin);
        }
        Ok(Some(mask))
    }

    /// The tokens that may not end the generation yet.
    fn banned(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        let stop = &self.record.request.stop;
        let is_early = self.generated < stop.min_tokens;
        let mut banned = if is_early { stop.token_ids.clone() } else { Vec::new() };
        // A constraint would take the end of the generation for the end of the text, after which nothing may follow.
        let bans_end = if stop.ignore_eos { self.constraint.is_some() } else { is_early };
        if bans_end {
            banned.extend(tokenizer.end_of_generation());
        }
        banned
    }

    /// The text held back when a stop token ends the request. The token's own text is part of it only if the client wants it.
    fn rest_at_stop_token(&mut self, token: TokenId, tokenizer: &Tokenizer) -> String {
        let stop = &self.record.request.stop;
        let has_text = stop.token_ids.contains(&token) && stop.include_stop_string;
        let mut text = self.stop.finish();
        text.push_str(&self.reasoning.as_mut().map(Reasoning::take_held).unwrap_or_default());
        if has_text {
            text.push_str(&self.detokenise(tokenizer, token));
        }
        text.push_str(&self.decoder.finish());
        text
    }

    /// The text of a token up to a stop string, or to what may be the beginning of one.
    fn accept(&mut self, mut text: String, last: Option<FinishReason>) -> (String, RequestEnd) {
        let stop = &self.record.request.stop;
        if self.generated > stop.min_tokens || stop.min_tokens == 0 {
            let scan = self.stop.push(&text);
            text = scan.text;
            if let Some(matched) = scan.matched {
                if stop.include_stop_string {
                    text.push_str(&matched);
                }
                return (text, Some((FinishReason::StopString(matched), String::new())));
            }
        }
        let end = last.map(|reason| (reason, self.stop.finish() + &self.decoder.finish()));
        (text, end)
    }

    fn detokenise(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        let from = self.detokenise_time.map(|_| Instant::now());
        let request = &self.record.request;
        let skips_special = request.skip_special_tokens && request.visible_tokens.binary_search(&token).is_err();
        let text = self.decoder.push(tokenizer, token, skips_special);
        if let (Some(sum), Some(from)) = (&mut self.detokenise_time, from) {
            *sum += from.elapsed();
        }
        text
    }

    fn finished(&self, tokens: usize, reason: FinishReason, text: String) -> Advance {
        Advance { verdict: Verdict::Ended, tokens, forced: 0, end: Some(self.end_event(reason, text)) }
    }

    fn end_event(&self, reason: FinishReason, text: String) -> Event {
        Event::Finished { reason, text, usage: self.record.usage() }
    }

    /// The record of the request.
    pub fn record(&self) -> &RequestRecord {
        &self.record
    }

    /// The number of this sampler among those that the request had.
    pub fn owner(&self) -> u32 {
        self.owner
    }
}

/// What a step makes of a block.
fn denoise(
    CanvasTask { denoising, block }: &CanvasTask,
    computed: Computed<'_>,
) -> Result<SampleOutcome, GenerationError> {
    let (rows, hidden) = match computed {
        Computed::Denoised { rows, hidden } => (rows, hidden),
        _ => (&[][..], &[][..]),
    };
    Ok(match denoising.advance(block.clone(), rows).map_err(unusable)? {
        Denoised::Again(block) => SampleOutcome::Denoised(CanvasState { block, hidden: hidden.into() }),
        Denoised::Finished(tokens) => SampleOutcome::Block(tokens),
    })
}

fn unusable(error: InvalidLogits) -> GenerationError {
    GenerationError::Engine(format!("the model's output is not usable: {error}"))
}

fn unenforceable(error: ConstraintError) -> GenerationError {
    GenerationError::Constraint(error.0)
}

/// Number of logits per row of a task.
fn row_length(logits: &[f32], task: &SampleTask) -> usize {
    logits.len() / task.rows.max(1)
}
