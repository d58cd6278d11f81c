//! The columns of a row in another order.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::quant::random;

/// `y[i] = x[order[i]]`, [rows, width]. The values keep their bits.
#[derive(Debug)]
pub struct ReorderColumns {
    order: Arc<[f32]>,
}

impl ReorderColumns {
    /// Takes the columns in this order, `[width]`, given as whole numbers: float32 has all numbers up to 2^24.
    #[must_use]
    pub fn new(order: Arc<[f32]>) -> Self {
        ReorderColumns { order }
    }
}

impl Op for ReorderColumns {
    fn name(&self) -> &'static str {
        "reorder_columns"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.order.len())?;
        let is_column = |number: &&f32| number.fract() == 0.0 && (0.0..inputs[0] as f32).contains(*number);
        let columns = self.order.iter().filter(is_column).count();
        ShapeError::check(self.name(), "number of columns in the order", columns, self.order.len())?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|_, range, y| {
            let row = &x[range];
            for (y, column) in y.iter_mut().zip(&*self.order) {
                *y = row[*column as usize];
            }
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.order]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(self.order.len());
        vec![args.each_column(Module::ReorderColumns, push, args.outputs[0].width)]
    }
}

/// Every column once, in an order that depends on the width.
fn shuffled(width: usize) -> Vec<usize> {
    let step = (width / 2..).find(|step| gcd(*step, width) == 1).unwrap_or(1);
    (0..width).map(|index| (index * step + 1) % width).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The expected results.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(rows, width): (usize, usize)| {
        let order = shuffled(width);
        let x = random::activations(rows * width, 1);
        let values = (0..rows).flat_map(|row| order.iter().map(move |column| row * width + column));
        let expected = Expected::within(0.0, values.map(|at| f64::from(x[at])));
        let op = ReorderColumns::new(order.iter().map(|column| *column as f32).collect());
        let step = CaseStep::of_rows(rows, vec![x.clone()], vec![expected]);
        Case::new(format!("{width} columns"), op, vec![step])
    };
    CASE_SHAPES.map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{run, supported_kernels, values};

    proptest! {
        #[test]
        fn columns_keep_their_bits(rows in 1usize..4, width in 1usize..60, seed: u64) {
            let (x, order) = (values(seed, rows * width), shuffled(width));
            let places = (0..rows).flat_map(|row| order.iter().map(move |column| row * width + column));
            let expected: Vec<u32> = places.map(|at| x[at].to_bits()).collect();
            let op = ReorderColumns::new(order.iter().map(|column| *column as f32).collect());
            for kernel in supported_kernels() {
                let found = &run(&op, kernel, rows, &[(&x, width)])[0];
                prop_assert_eq!(found.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected.clone());
            }
        }
    }

    #[test]
    fn what_is_no_order_of_the_columns_is_refused() {
        let widths = |order: &[f32]| ReorderColumns::new(order.into()).output_widths(&[2]);
        assert_eq!(widths(&[1.0, 0.0]), Ok(vec![2]));
        for wrong in [2.0, -1.0, 0.5, f32::NAN, f32::INFINITY] {
            assert!(widths(&[0.0, wrong]).is_err(), "{wrong}");
        }
        assert!(widths(&[0.0]).is_err());
    }
}
