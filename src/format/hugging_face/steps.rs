//! From the ops of a rule to the steps for a tensor of a certain shape: orders of rows that follow from the numbers of heads.

use super::config::Config;
use super::error::HuggingFaceError;
use super::family::Family;
use super::rope;
use super::row_order::{rotary_rows, rows_in_halves, ungrouped, value_heads};
use super::rules::{Groups, Heads, Op, Outer};
use super::transform::Step;

/// The numbers of heads that decide the order of rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadCounts {
    /// Heads of queries.
    pub query: usize,
    /// Heads of keys.
    pub key: usize,
    /// The length of a head.
    pub length: usize,
    /// Heads of keys and values of the gated delta rule, and the length of those of keys.
    pub delta: [usize; 3],
    /// The rotated values of a head whose pairs are divided among the positions of images.
    pub rotated: usize,
    /// The length of values of the gated delta rule.
    pub delta_value: usize,
    /// The lengths of keys, without the rotated section, and of values that are computed from a latent vector.
    pub latent: [usize; 2],
    /// The lengths of all queries of an indexer together, and of its key.
    pub indexer: [usize; 2],
    /// Groups of a state space.
    pub state_groups: usize,
    /// Experts.
    pub experts: usize,
    /// Rows of the encoder before those of a decoder.
    pub encoder_rows: usize,
    /// The sections of the rows of a state space's input: the length and the factor of each.
    pub state_sections: [(usize, f32); 5],
}

impl HeadCounts {
    /// The number of these heads, in a tensor with this many rows; `None` for heads without a length.
    fn count(&self, of: Heads, rows: usize) -> Option<usize> {
        match of {
            Heads::Query => Some(self.query),
            Heads::Key => Some(self.key),
            Heads::OfLength => rows.checked_div(self.length),
        }
    }

    pub(super) fn read(config: &Config) -> Result<Self, HuggingFaceError> {
        let size = |key: &str| config.u32(key).map(|size| size.unwrap_or(0) as usize);
        let query = config.size("num_attention_heads")?;
        Ok(HeadCounts {
            query,
            key: config.u32("num_key_value_heads")?.map_or(query, |heads| heads as usize),
            length: config.head_dim().unwrap_or_default(),
            delta: [size("linear_num_key_heads")?, size("linear_num_value_heads")?, size("linear_key_head_dim")?],
            rotated: rope::sectioned_length(config)?,
            delta_value: size("linear_value_head_dim")?,
            latent: [size("qk_nope_head_dim")?, size("v_head_dim")?],
            indexer: [size("indexer_n_heads")?.saturating_mul(size("indexer_head_dim")?), size("indexer_head_dim")?],
            state_groups: size("mamba_n_groups")?,
            experts: size("num_experts")?,
            encoder_rows: size("max_source_positions")?,
            state_sections: state_sections(config)?,
        })
    }
}

/// The gate, x, B, C and the time step of a state space.
fn state_sections(config: &Config) -> Result<[(usize, f32); 5], HuggingFaceError> {
    let size = |key: &str| config.u32(key).map(|size| size.unwrap_or(0) as usize);
    let (heads, group) = (size("mamba_n_heads")?, size("mamba_n_groups")?.saturating_mul(size("mamba_d_state")?));
    let inner = heads.saturating_mul(size("mamba_d_head")?);
    let mut sections = [(inner, 1.0), (inner, 1.0), (group, 1.0), (group, 1.0), (heads, 1.0)];
    let factors = config.list("ssm_multipliers")?.into_iter().flatten();
    for (section, factor) in sections.iter_mut().zip(factors) {
        section.1 = config.as_f32("ssm_multipliers", factor)? * config.f32("ssm_in_multiplier")?.unwrap_or(1.0);
    }
    Ok(sections)
}

/// What an op does to a tensor of this shape; `None` for nothing, and an error where the shape does not allow it.
pub(super) fn step(op: Op, shape: &[usize], family: &Family, heads: &HeadCounts) -> Option<Result<Step, ()>> {
    let is_needed = match op {
        Op::Norm => family.norms_lack_one,
        Op::FromFirstPosition => family.first_position > 0,
        Op::StateFactors => heads.state_sections.iter().any(|section| section.1 != 1.0),
        _ => true,
    };
    is_needed.then(|| needed_step(op, shape, family, heads).ok_or(()))
}

/// What an op that changes something does; `None` where the shape does not allow it.
fn needed_step(op: Op, shape: &[usize], family: &Family, heads: &HeadCounts) -> Option<Step> {
    let from_innermost = |axis: usize| shape.len().checked_sub(axis + 1);
    let rows = shape.first().copied().unwrap_or(0);
    let (axis, indices) = match op {
        Op::Norm | Op::AddOne => return Some(Step::AddOne),
        Op::NegExp => return Some(Step::NegExp),
        Op::Exp => return Some(Step::Exp),
        Op::Softplus => return Some(Step::Softplus),
        Op::Transpose => return Some(Step::Transpose),
        Op::Factor(_) => return (rows == 2).then_some(Step::Product),
        // These tensors are not changed.
        Op::Numbers => return None,
        Op::StateFactors => return repeated(&heads.state_sections, rows).map(Step::ScaleRows),
        Op::JoinOuter => {
            let [outer, next, rest @ ..] = shape else { return None };
            let joined = outer.checked_mul(*next)?;
            return Some(Step::Reshape([&[joined], rest].concat()));
        }
        Op::Divide(outer) => return divided(outer, shape, heads).map(Step::Reshape),
        Op::AfterEncoderRows => (0, std::iter::repeat_n(0, heads.encoder_rows).chain(0..rows).collect()),
        Op::FromFirstPosition => (0, (family.first_position..rows).collect::<Vec<_>>()),
        Op::Half { part, axis } => {
            let axis = from_innermost(axis)?;
            let half = Some(shape[axis] / 2).filter(|half| 2 * half == shape[axis])?;
            (axis, (part * half..(part + 1) * half).collect())
        }
        Op::EverySecond { first, axis } => {
            let axis = from_innermost(axis).filter(|axis| shape[*axis].is_multiple_of(2))?;
            (axis, (first..shape[axis]).step_by(2).collect())
        }
        Op::EvenFirst => (0, (0..rows).step_by(2).chain((1..rows).step_by(2)).collect()),
        Op::ColorByColor => {
            const COLORS: usize = 3;
            let axis = from_innermost(0).filter(|axis| shape[*axis].is_multiple_of(COLORS))?;
            (axis, (0..COLORS).flat_map(|color| (color..shape[axis]).step_by(COLORS)).collect())
        }
        Op::Frame(frame) => {
            const PARTS: usize = 3 * 2;
            let axis = from_innermost(0).filter(|axis| shape[*axis].is_multiple_of(PARTS))?;
            let length = shape[axis] / PARTS;
            let of_color = |part: usize| part * length..(part + 1) * length;
            (axis, (frame..PARTS).step_by(2).flat_map(of_color).collect())
        }
        Op::RotaryRows(of) => (0, rotary_rows(rows, heads.count(of, rows)?)?),
        Op::RotatedHalves(of) => (0, rows_in_halves(rows, heads.count(of, rows)?, heads.rotated)?),
        Op::Ungroup { groups, first, end } => (0, of_groups(groups, rows, [first, end], heads)?),
        Op::ValueHeads { axis, after_keys } => {
            let [keys, values, key_dim] = heads.delta;
            let before = if after_keys { keys.saturating_mul(key_dim).saturating_mul(2) } else { 0 };
            (axis, value_heads(shape.get(axis).copied().unwrap_or(0), before, [keys, values])?)
        }
    };
    (!indices.is_empty()).then_some(Step::Take { axis, indices })
}

/// The factor of each row of sections that have this many rows together.
fn repeated(sections: &[(usize, f32)], rows: usize) -> Option<Vec<f32>> {
    let all = sections.iter().try_fold(0usize, |sum, section| sum.checked_add(section.0))?;
    let repeat = |(length, factor): &(usize, f32)| std::iter::repeat_n(*factor, *length);
    (all == rows).then(|| sections.iter().flat_map(repeat).collect())
}

/// The rows of some parts of groups.
fn of_groups(groups: Groups, rows: usize, parts: [usize; 2], heads: &HeadCounts) -> Option<Vec<usize>> {
    match groups {
        Groups::Indexer => ungrouped(rows, 1, &heads.indexer, parts),
        Groups::Latent => ungrouped(rows, heads.query, &heads.latent, parts),
        Groups::Fused => {
            let queries = heads.query.checked_div(heads.key)?;
            let length = rows.checked_div(heads.key.checked_mul(queries + 2)?)?;
            ungrouped(rows, heads.key, &[queries * length, length, length], parts)
        }
        Groups::InTurn => {
            let length = rows.checked_div(heads.key.checked_mul(2)?.checked_add(heads.query)?)?;
            ungrouped(rows, 1, &[heads.query * length, heads.key * length, heads.key * length], parts)
        }
        Groups::Delta => {
            let [keys, values, key_dim] = heads.delta;
            let of_key = values.checked_div(keys)?.checked_mul(heads.delta_value)?;
            ungrouped(rows, keys, &[key_dim, key_dim, of_key, of_key], parts)
        }
    }
}

/// A shape whose outermost axis is divided in two.
fn divided(outer: Outer, shape: &[usize], heads: &HeadCounts) -> Option<Vec<usize>> {
    let (length, rest) = shape.split_first()?;
    let outer = match outer {
        Outer::QueryHeads => heads.query,
        Outer::StateGroups => heads.state_groups,
        Outer::Experts => heads.experts,
        Outer::All => *length,
    };
    let inner = length.checked_div(outer).filter(|inner| inner * outer == *length)?;
    Some([outer, inner].into_iter().chain(rest.iter().copied()).collect())
}
