//! The formula in float64.

use super::{BLOCK_COLUMNS, SpaceShape, SpaceWeights};

/// One row: the output [heads * head_dim]. `state` is replaced with the one after the row; its layout is that of the op.
/// `inputs` are the row of each input of the op.
#[must_use]
pub fn reference(shape: &SpaceShape, weights: &SpaceWeights, state: &mut [f64], inputs: &[&[f32]]) -> Vec<f64> {
    let mut output = Vec::new();
    for head in 0..shape.heads {
        let parameter = |values: &[f32]| f64::from(values[head]);
        let dt = (f64::from(inputs[1][head]) + parameter(&weights.dt_bias)).exp().ln_1p();
        let decay = (dt * parameter(&weights.a)).exp();
        let start = shape.start_of_b(head);
        let b = |index: usize| f64::from(inputs[0][start + index]);
        let c = |index: usize| f64::from(inputs[0][start + shape.groups * shape.state_dim + index]);
        for column in 0..shape.head_dim {
            let x = f64::from(inputs[0][head * shape.head_dim + column]);
            let block = head * shape.blocks() + column / BLOCK_COLUMNS;
            let place = |index: usize| block * shape.block_len() + index * BLOCK_COLUMNS + column % BLOCK_COLUMNS;
            let mut y = parameter(&weights.d) * x;
            for index in 0..shape.state_dim {
                state[place(index)] = decay * state[place(index)] + b(index) * dt * x;
                y += c(index) * state[place(index)];
            }
            output.push(y);
        }
    }
    output
}
