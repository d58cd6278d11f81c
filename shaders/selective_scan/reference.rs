//! The formula in float64.

use super::ScanShape;

/// One row: the output \[channels\]. `state` is replaced with the one after the row; its layout is that of the op.
/// `a` is [channels, state_dim], `d` is \[channels\]; `inputs` are the row of each input of the op.
#[must_use]
pub fn reference(shape: &ScanShape, [a, d]: [&[f32]; 2], state: &mut [f64], inputs: &[&[f32]]) -> Vec<f64> {
    let of_channel = |channel: usize| {
        let [x, dt] = [inputs[0][channel], inputs[1][channel]].map(f64::from);
        let dt = dt.exp().ln_1p();
        let mut y = f64::from(d[channel]) * x;
        for index in 0..shape.state_dim {
            let [b, c] = [inputs[2][index], inputs[3][index]].map(f64::from);
            let decay = (dt * f64::from(a[channel * shape.state_dim + index])).exp();
            let value = &mut state[shape.place(channel, index)];
            *value = decay * *value + dt * x * b;
            y += c * *value;
        }
        y
    };
    (0..shape.channels).map(of_channel).collect()
}
