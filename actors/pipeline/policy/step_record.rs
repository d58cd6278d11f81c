//! A step that was formed and is not sampled yet.

use std::time::Duration;

use super::drafts::MemberDraft;
use super::prompt_time::Charge;
use super::step_time::Work;
use crate::core::request::RequestId;

/// The tokens of one sequence in a step.
#[derive(Debug)]
pub(super) struct Member {
    pub id: RequestId,
    /// Number of tokens of the sequence that are computed before the step.
    pub from: usize,
    /// Number of tokens of the sequence that are computed after the step.
    pub to: usize,
    /// Whether the sampler returns an outcome for it.
    pub task: bool,
    /// Whether that outcome is new tokens.
    pub samples: bool,
    /// The tokens behind its newest one, if they are a draft.
    pub draft: Option<MemberDraft>,
    /// Whether its rows are a canvas, which computes no tokens.
    pub is_canvas: bool,
}

/// The phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepPhase {
    /// At the executor, which may write to the blocks of its members.
    Computing,
    /// Computed in this time, but not applied yet because an earlier step is still being sampled.
    Computed(Duration),
    /// At the sampler.
    Sampling,
}

/// A step that is not sampled yet.
#[derive(Debug)]
pub(super) struct StepRecord {
    pub members: Vec<Member>,
    pub phase: StepPhase,
    pub work: Work,
    pub prompt_rows: PromptRows,
}

/// How the prompt rows of a step were limited.
#[derive(Debug)]
pub(super) enum PromptRows {
    /// The step has no prompt rows.
    None,
    /// As many as the time allowed. The charge is the time they are expected to take from decode rows, if there are any.
    InTime(Option<Charge>),
    /// As many as the step can hold, because the device is saturated and more rows take hardly longer.
    Saturated,
}

impl PromptRows {
    pub fn of(rows: usize, is_saturated: bool, charge: Option<Charge>) -> Self {
        match (rows, is_saturated) {
            (0, _) => PromptRows::None,
            (_, false) => PromptRows::InTime(charge),
            (_, true) => PromptRows::Saturated,
        }
    }
}

impl StepRecord {
    /// A step that is sent to the executor.
    pub fn new(members: Vec<Member>, work: Work, prompt_rows: PromptRows) -> Self {
        StepRecord { members, phase: StepPhase::Computing, work, prompt_rows }
    }

    /// Whether the step is at the executor.
    pub fn is_computing(&self) -> bool {
        self.phase == StepPhase::Computing
    }

    /// Members that the step still has results for.
    pub fn open_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| self.phase != StepPhase::Sampling || member.task)
    }
}
