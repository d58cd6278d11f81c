//! Splitting and joining heads, and ranges of columns: in latent attention, rotary position embedding applies only to a part of
//! each head.

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::{SharedMut, for_each_chunk};
use crate::gpu::{DeviceValue, Dispatch, GpuArgs, Module, Push};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// Splits every head in two: x [rows, heads * (first + second)] becomes [rows, heads * first] and [rows, heads *
/// second].
#[derive(Debug)]
pub struct SplitHeads {
    /// Values of a head in the first output.
    pub first: usize,
    /// Values of a head in the second.
    pub second: usize,
}

/// Joins the two parts of every head: [rows, heads * first] and [rows, heads * second] become [rows, heads * (first +
/// second)].
#[derive(Debug)]
pub struct JoinHeads {
    /// Values of a head in the first input.
    pub first: usize,
    /// Values of a head in the second.
    pub second: usize,
}

/// Takes a range of the columns of a value: x [rows, columns] becomes [rows, len].
#[derive(Debug)]
pub struct TakeColumns {
    /// The first column.
    pub start: usize,
    /// The number of columns.
    pub len: usize,
}

/// A range of values in every head.
#[derive(Clone, Copy)]
struct HeadRange {
    /// Values of a whole head.
    head: usize,
    /// The start of the range in the head.
    start: usize,
}

impl Op for SplitHeads {
    fn name(&self) -> &'static str {
        "split_heads"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        let head = self.first + self.second;
        let heads = inputs[0] / head.max(1);
        ShapeError::check(self.name(), "width of the input", inputs[0], heads * head)?;
        Ok(vec![heads * self.first, heads * self.second])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        let head = self.first + self.second;
        let row = x.len() / args.rows.max(1);
        let [first, second] = &mut *args.outputs else { return };
        let [first, second] = [SharedMut::new(first), SharedMut::new(second)];
        args.team.for_each(args.rows, &|index| {
            let heads = row / head;
            // SAFETY: each task writes its own row of each output.
            let (first, second) = unsafe {
                let first = first.slice(index * heads * self.first, heads * self.first);
                (first, second.slice(index * heads * self.second, heads * self.second))
            };
            for (index, x) in x[index * row..(index + 1) * row].chunks_exact(head).enumerate() {
                first[index * self.first..(index + 1) * self.first].copy_from_slice(&x[..self.first]);
                second[index * self.second..(index + 1) * self.second].copy_from_slice(&x[self.first..]);
            }
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (x, head) = (args.inputs[0], self.first + self.second);
        let part = |output: DeviceValue, start, length| {
            copy(args, [x, output], HeadRange { head, start }, HeadRange { head: length, start: 0 }, length)
        };
        vec![part(args.outputs[0], 0, self.first), part(args.outputs[1], self.first, self.second)]
    }
}

impl Op for JoinHeads {
    fn name(&self) -> &'static str {
        "join_heads"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        let heads = inputs[0] / self.first.max(1);
        ShapeError::check(self.name(), "width of the first input", inputs[0], heads * self.first)?;
        ShapeError::check(self.name(), "width of the second input", inputs[1], heads * self.second)?;
        Ok(vec![inputs[0] + inputs[1]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (first, second) = (args.inputs[0], args.inputs[1]);
        let head = self.first + self.second;
        let row = (first.len() + second.len()) / args.rows.max(1);
        for_each_chunk(args.team, args.outputs[0], row, &|index, y| {
            let first_head = index * (row / head);
            for (index, y) in y.chunks_exact_mut(head).enumerate() {
                let index = first_head + index;
                y[..self.first].copy_from_slice(&first[index * self.first..(index + 1) * self.first]);
                y[self.first..].copy_from_slice(&second[index * self.second..(index + 1) * self.second]);
            }
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (y, head) = (args.outputs[0], self.first + self.second);
        let part = |input: DeviceValue, start, length| {
            copy(args, [input, y], HeadRange { head: length, start: 0 }, HeadRange { head, start }, length)
        };
        vec![part(args.inputs[0], 0, self.first), part(args.inputs[1], self.first, self.second)]
    }
}

impl Op for TakeColumns {
    fn name(&self) -> &'static str {
        "take_columns"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        let end = self.start + self.len;
        ShapeError::check(self.name(), format!("columns of the input from {end} on"), end.max(inputs[0]), inputs[0])?;
        Ok(vec![self.len])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let width = args.inputs[0].len() / args.rows.max(1);
        for (x, y) in args.inputs[0].chunks_exact(width).zip(args.outputs[0].chunks_exact_mut(self.len)) {
            y.copy_from_slice(&x[self.start..self.start + self.len]);
        }
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (x, y) = (args.inputs[0], args.outputs[0]);
        let (from, to) = (HeadRange { head: x.width, start: self.start }, HeadRange { head: self.len, start: 0 });
        vec![copy(args, [x, y], from, to, self.len)]
    }
}

/// The dispatch that copies `length` values of every head.
fn copy(args: &GpuArgs<'_>, [x, y]: [DeviceValue; 2], from: HeadRange, to: HeadRange, length: usize) -> Dispatch {
    let heads = x.width / from.head;
    let push = Push::new()
        .address(x.region.address)
        .address(y.region.address)
        .address(args.step)
        .word(args.rows.kind())
        .size(heads)
        .size(length)
        .size(from.head)
        .size(from.start)
        .size(to.head)
        .size(to.start);
    let dispatch = args.each_column(Module::Heads, push, heads * length);
    Dispatch { reads: vec![x.region], writes: vec![y.region], ..dispatch }
}

/// The expected results: one head and many, parts of any lengths.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(rows, heads, first, second): (usize, usize, usize, usize)| {
        let name = format!("{heads} heads of {first} and {second}");
        let whole = random::activations(rows * heads * (first + second), 1);
        let parts = |from: usize, to: usize| -> Vec<f32> {
            whole.chunks_exact(first + second).flat_map(|head| head[from..to].to_vec()).collect()
        };
        let parts = [parts(0, first), parts(first, first + second)];
        let expected = parts.iter().map(|part| Expected::exactly(part)).collect();
        let split = CaseStep::of_rows(rows, vec![whole.clone()], expected);
        let join = CaseStep::of_rows(rows, parts.into(), vec![Expected::exactly(&whole)]);
        [
            Case::new(name.clone(), SplitHeads { first, second }, vec![split]),
            Case::new(name, JoinHeads { first, second }, vec![join]),
        ]
    };
    let take = |(rows, width, start, len): (usize, usize, usize, usize)| {
        let x = random::activations(rows * width, 2);
        let taken: Vec<f32> = x.chunks_exact(width).flat_map(|row| row[start..start + len].to_vec()).collect();
        let step = CaseStep::of_rows(rows, vec![x], vec![Expected::exactly(&taken)]);
        Case::new(format!("columns {start} to {}", start + len), TakeColumns { start, len }, vec![step])
    };
    let parts = [(1, 1, 1, 1), (3, 5, 128, 64), (70, 1, 512, 64), (2, 16, 7, 9)].into_iter().flat_map(case);
    parts.chain([(1, 1, 0, 1), (5, 640, 256, 128), (33, 21, 14, 7)].map(take)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_that_are_not_whole_heads_are_refused() {
        assert_eq!(SplitHeads { first: 3, second: 2 }.output_widths(&[20]), Ok(vec![12, 8]));
        assert!(SplitHeads { first: 3, second: 2 }.output_widths(&[21]).is_err());
        assert_eq!(JoinHeads { first: 3, second: 2 }.output_widths(&[12, 8]), Ok(vec![20]));
        assert!(JoinHeads { first: 3, second: 2 }.output_widths(&[12, 9]).is_err());
        assert_eq!(TakeColumns { start: 3, len: 2 }.output_widths(&[5]), Ok(vec![2]));
        assert!(TakeColumns { start: 3, len: 2 }.output_widths(&[4]).is_err());
    }
}
