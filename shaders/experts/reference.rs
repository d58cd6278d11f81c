//! The float64 reference of routes and experts.

use super::{ExpertActivation, Experts, Groups, Route, RouteWeighting, Scoring};

/// The routes of one row of logits: experts and their weights, best first or as given.
#[must_use]
pub fn routes(route: &Route, logits: &[f64], given: Option<&[usize]>) -> Vec<(usize, f64)> {
    let scores: Vec<f64> = match route.scoring() {
        Scoring::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Scoring::SqrtSoftplus => logits.iter().map(|x| x.exp().ln_1p().sqrt()).collect(),
        Scoring::Softmax => {
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exponentials: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            exponentials.iter().map(|x| x / sum).collect()
        }
    };
    let bias = |expert: usize| route.bias().map_or(0.0, |bias| f64::from(bias[expert]));
    let preferences: Vec<f64> = scores.iter().enumerate().map(|(expert, score)| score + bias(expert)).collect();
    let descending = |values: &[f64], among: Vec<usize>| {
        let mut order = among;
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
        order
    };
    let mut allowed: Vec<usize> = (0..logits.len()).collect();
    if let Some(Groups { count, used }) = route.groups() {
        let size = logits.len() / count;
        let group_scores: Vec<f64> = (0..count)
            .map(|group| {
                let members = descending(&preferences, (group * size..(group + 1) * size).collect());
                members.iter().take(2).map(|member| preferences[*member]).sum()
            })
            .collect();
        let best: Vec<usize> = descending(&group_scores, (0..count).collect()).into_iter().take(used).collect();
        allowed.retain(|expert| best.contains(&(expert / size)));
    }
    let best = || descending(&preferences, allowed).into_iter().take(route.top_k()).collect();
    let chosen: Vec<usize> = given.map_or_else(best, <[usize]>::to_vec);
    let sum: f64 = if route.renormalises() { chosen.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
    let expert_scale = |expert: usize| route.expert_scales().map_or(1.0, |scales| f64::from(scales[expert]));
    let weight = |expert: usize| scores[expert] / sum * f64::from(route.scale()) * expert_scale(expert);
    chosen.into_iter().map(|expert| (expert, weight(expert))).collect()
}

/// The output of the experts for one row. `routes` are slots in the tensors and weights.
#[must_use]
pub fn output(experts: &Experts, x: &[f64], routes: &[(usize, f64)]) -> Vec<f64> {
    let mut y = vec![0.0; experts.hidden_size()];
    for &(expert, weight) in routes {
        let (before, after) = match experts.weighting {
            RouteWeighting::Output => (1.0, weight),
            RouteWeighting::Input => (weight, 1.0),
        };
        let x: Vec<f64> = x.iter().map(|x| x * before).collect();
        let product = |matrix: &super::ExpertMatrix, x: &[f64]| -> Vec<f64> {
            let (weight, bias) = (matrix.expert(expert).to_f32(), matrix.expert_bias(expert));
            let bias = |output: usize| bias.map_or(0.0, |bias| f64::from(bias[output]));
            let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
            let factor = f64::from(matrix.expert_factor(expert));
            weight.chunks_exact(x.len()).enumerate().map(|(output, row)| factor * dot(row) + bias(output)).collect()
        };
        let up = product(&experts.up, &x);
        let gate = experts.gate.as_ref().map_or_else(|| up.clone(), |gate| product(gate, &x));
        let activate = |(g, u): (&f64, &f64)| match experts.activation {
            ExpertActivation::Gated(function) => function.reference(*g, *u),
            ExpertActivation::Ungated(function) => function.reference(*u),
        };
        let activated: Vec<f64> = gate.iter().zip(&up).map(activate).collect();
        for (y, out) in y.iter_mut().zip(product(&experts.down, &activated)) {
            *y += after * out;
        }
    }
    y
}
