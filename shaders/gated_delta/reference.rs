//! The formula in float64.

use super::{BLOCK_COLUMNS, DecayForm, DeltaShape, EPSILON};

/// One row: the output [value_heads * value_dim]. `state` is replaced with the one after the row; its layout is that of
/// the op. `inputs` are the row of each input of the op.
#[must_use]
pub fn reference(
    (shape, form): (&DeltaShape, DecayForm),
    a: &[f32],
    dt_bias: &[f32],
    state: &mut [f64],
    inputs: &[&[f32]],
) -> Vec<f64> {
    let float = |values: &[f32]| -> Vec<f64> { values.iter().map(|value| f64::from(*value)).collect() };
    let [mixed, dt, beta] = [0, 1, 2].map(|input| float(inputs[input]));
    let decays = dt_bias.len() / shape.value_heads;
    let mut output = Vec::new();
    for head in 0..shape.value_heads {
        let start = shape.key_head(head) * shape.key_dim;
        let query = normalised(&mixed[start..][..shape.key_dim]);
        let key = normalised(&mixed[shape.key_width() + start..][..shape.key_dim]);
        let value = &mixed[2 * shape.key_width() + head * shape.value_dim..][..shape.value_dim];
        let beta = 1.0 / (1.0 + (-beta[head]).exp());
        let decay = |index: usize| {
            let entry = head * decays + index % decays;
            let (a, x) = (f64::from(a[head]), dt[entry] + f64::from(dt_bias[entry]));
            match form {
                DecayForm::Softplus => (a * x.exp().ln_1p()).exp(),
                DecayForm::Bounded(bound) => (f64::from(bound) / (1.0 + (-a * x).exp())).exp(),
            }
        };
        for (column, value) in value.iter().enumerate() {
            let block = head * shape.blocks() + column / BLOCK_COLUMNS;
            let place = |index: usize| block * shape.block_len() + index * BLOCK_COLUMNS + column % BLOCK_COLUMNS;
            (0..shape.key_dim).for_each(|index| state[place(index)] *= decay(index));
            let recalled: f64 = (0..shape.key_dim).map(|index| state[place(index)] * key[index]).sum();
            let correction = beta * (value - recalled);
            (0..shape.key_dim).for_each(|index| state[place(index)] += key[index] * correction);
            let read: f64 = (0..shape.key_dim).map(|index| state[place(index)] * query[index]).sum();
            output.push(read / (shape.key_dim as f64).sqrt());
        }
    }
    output
}

fn normalised(values: &[f64]) -> Vec<f64> {
    let squares: f64 = values.iter().map(|value| value * value).sum();
    values.iter().map(|value| value / (squares + f64::from(EPSILON)).sqrt()).collect()
}
