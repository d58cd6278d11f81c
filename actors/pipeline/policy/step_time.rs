//! Predicts the time of a step from measured steps.
//!
//! A step reads all weights once, computes something for each row, and reads the keys and values of every token that a row
//! attends to. So its time is close to `base + per_row * rows + per_attended * attended` on any device. The three
//! coefficients are fitted to recent steps by non-negative least squares of the relative error. Steps with and without
//! prompt rows are stored separately, so that a long run of one kind does not displace the other.

use std::collections::VecDeque;
use std::time::Duration;

/// The amount of work in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    /// Number of computed tokens.
    pub rows: usize,
    /// Number of tokens that the rows attend to, summed over the rows.
    pub attended: usize,
}

impl Work {
    /// The work of `rows` consecutive tokens of a sequence, the first at `position`.
    pub fn of(position: usize, rows: usize) -> Self {
        Work { rows, attended: rows * position + rows * (rows + 1) / 2 }
    }

    pub fn add(&mut self, other: Work) {
        self.rows += other.rows;
        self.attended += other.attended;
    }
}

/// Number of stored steps of each kind.
const STORED_STEPS: usize = 48;

/// Number of coefficients: base, per row, per attended token.
const TERMS: usize = 3;

/// Measured steps and the fitted coefficients.
#[derive(Debug, Default)]
pub(super) struct StepTime {
    decode: VecDeque<(Work, f64)>,
    prefill: VecDeque<(Work, f64)>,
    /// The coefficients, in seconds: base, per row, per attended token.
    fit: Option<[f64; TERMS]>,
}

impl StepTime {
    /// Adds a measured step.
    pub fn observe(&mut self, work: Work, has_prompt_rows: bool, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        if work.rows == 0 || seconds <= 0.0 {
            return;
        }
        let steps = if has_prompt_rows { &mut self.prefill } else { &mut self.decode };
        if steps.len() == STORED_STEPS {
            steps.pop_front();
        }
        steps.push_back((work, seconds));
        self.fit = fit(self.decode.iter().chain(&self.prefill));
    }

    /// Whether a step with prompt rows was measured.
    pub fn knows_prefill(&self) -> bool {
        !self.prefill.is_empty()
    }

    /// Whether steps with prompt rows were measured that are large enough to predict one with `rows` prompt rows.
    pub fn knows_prefill_of(&self, rows: usize) -> bool {
        const EXTRAPOLATION: usize = 8;
        self.prefill.iter().any(|(work, _)| work.rows * EXTRAPOLATION >= rows)
    }

    /// The predicted time of a step. `None` before any step was measured.
    pub fn predict(&self, work: Work) -> Option<Duration> {
        let [base, per_row, per_attended] = self.fit?;
        let seconds = base + per_row * work.rows as f64 + per_attended * work.attended as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// The predicted time of `tokens` prompt rows, without the base time of steps and without attention.
    pub fn of_rows(&self, tokens: usize) -> Option<Duration> {
        Duration::try_from_secs_f64(self.fit?[1] * tokens as f64).ok()
    }

    /// The predicted time of one more row at `position`, in seconds. 0 before any step was measured.
    pub fn of_row_at(&self, position: usize) -> f64 {
        self.fit.map_or(0.0, |[_, per_row, per_attended]| per_row + per_attended * position as f64)
    }

    /// Number of rows of one sequence, from `position` on, that can be added to `work` within `limit`.
    pub fn rows_within(&self, limit: Duration, work: Work, position: usize) -> Option<usize> {
        let [base, per_row, per_attended] = self.fit?;
        let used = base + per_row * work.rows as f64 + per_attended * work.attended as f64;
        let left = limit.as_secs_f64() - used;
        if left <= 0.0 {
            return Some(0);
        }
        // per_attended/2 n^2 + (per_row + per_attended * position) n = left
        let (square, linear) = (per_attended / 2.0, per_row + per_attended * (position as f64 + 0.5));
        if linear <= 0.0 {
            return None;
        }
        // The numerically stable form of the positive root. `square` may be 0.
        Some((2.0 * left / (linear + (linear * linear + 4.0 * square * left).sqrt())) as usize)
    }
}

/// Non-negative least squares: the best solution over all subsets of terms that has no negative coefficient.
fn fit<'a>(steps: impl Iterator<Item = &'a (Work, f64)>) -> Option<[f64; TERMS]> {
    let (mut normal, mut right, mut count) = ([[0.0; TERMS]; TERMS], [0.0; TERMS], 0.0);
    for (work, seconds) in steps {
        // Each row is divided by the measured time, so that the right side is 1 and the error is relative.
        let row = [1.0, work.rows as f64, work.attended as f64].map(|term| term / seconds);
        for i in 0..TERMS {
            for j in 0..TERMS {
                normal[i][j] += row[i] * row[j];
            }
            right[i] += row[i];
        }
        count += 1.0;
    }
    let subsets = (1..1u8 << TERMS).filter_map(|subset| {
        let solution = solve(&normal, &right, subset)?;
        // |A x - 1|^2 = x'Nx - 2x'r + count, and at the optimum x'Nx = x'r.
        let error = count - (0..TERMS).map(|i| solution[i] * right[i]).sum::<f64>();
        solution.iter().all(|&term| term >= 0.0).then_some((error, solution))
    });
    subsets.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, solution)| solution)
}

/// Solves the normal equations for the terms in `subset` by Gaussian elimination. `None` when they are not independent.
fn solve(normal: &[[f64; TERMS]; TERMS], right: &[f64; TERMS], subset: u8) -> Option<[f64; TERMS]> {
    let terms: Vec<usize> = (0..TERMS).filter(|term| subset & (1 << term) != 0).collect();
    let n = terms.len();
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(n);
    for &i in &terms {
        rows.push(terms.iter().map(|&j| normal[i][j]).chain([right[i]]).collect());
    }
    for pivot in 0..n {
        let own = rows[pivot][pivot];
        if own <= 1e-9 * normal[terms[pivot]][terms[pivot]] || own <= 0.0 {
            return None;
        }
        for other in (0..n).filter(|&other| other != pivot) {
            let factor = rows[other][pivot] / own;
            let (own_row, other_row) = (rows[pivot].clone(), &mut rows[other]);
            for (cell, own_cell) in other_row.iter_mut().zip(&own_row).skip(pivot) {
                *cell -= factor * own_cell;
            }
        }
    }
    let mut solution = [0.0; TERMS];
    for (index, &term) in terms.iter().enumerate() {
        solution[term] = rows[index][n] / rows[index][index];
    }
    Some(solution)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a step on a machine with known coefficients.
    fn machine(work: Work) -> Duration {
        Duration::from_micros(6000 + 1500 * work.rows as u64) + Duration::from_nanos(800 * work.attended as u64)
    }

    fn fitted() -> StepTime {
        let mut step_time = StepTime::default();
        for i in 0..200 {
            let mut work = Work::default();
            (0..1 + i % 8).for_each(|_| work.add(Work::of(100 + 3 * i, 1)));
            let has_prompt_rows = i % 5 == 0;
            if has_prompt_rows {
                work.add(Work::of(16 * i, 10 + i % 60));
            }
            step_time.observe(work, has_prompt_rows, machine(work));
        }
        step_time
    }

    #[test]
    fn nothing_is_predicted_before_a_step_was_measured() {
        assert_eq!(StepTime::default().predict(Work::of(0, 1)), None);
        assert_eq!(StepTime::default().rows_within(Duration::from_secs(1), Work::default(), 0), None);
    }

    #[test]
    fn predictions_match_the_measured_machine() {
        let step_time = fitted();
        for work in [Work::of(50, 1), Work::of(4000, 1), Work::of(0, 300), Work::of(3000, 64)] {
            let (predicted, real) = (step_time.predict(work).unwrap().as_secs_f64(), machine(work).as_secs_f64());
            assert!((predicted / real - 1.0).abs() < 0.01, "{work:?}: {predicted} predicted, {real} measured");
        }
    }

    #[test]
    fn a_chunk_fills_the_remaining_time_and_no_more() {
        let step_time = fitted();
        for position in [0, 1000, 7000] {
            let mut work = Work::of(500, 1);
            let limit = Duration::from_millis(60);
            let rows = step_time.rows_within(limit, work, position).unwrap();
            assert!(rows > 0);
            let mut more = work;
            work.add(Work::of(position, rows));
            more.add(Work::of(position, rows + 2));
            assert!(machine(work) <= limit.mul_f64(1.01), "{rows} rows at {position} take {:?}", machine(work));
            assert!(machine(more) >= limit.mul_f64(0.99), "{rows} rows at {position} take {:?}", machine(work));
        }
        assert_eq!(step_time.rows_within(Duration::from_millis(1), Work::of(0, 1), 0), Some(0));
    }

    #[test]
    fn identical_steps_give_a_usable_prediction() {
        let mut step_time = StepTime::default();
        for _ in 0..100 {
            step_time.observe(Work::of(10, 1), false, Duration::from_millis(8));
        }
        let predicted = step_time.predict(Work::of(10, 1)).unwrap();
        assert!((7.9..8.1).contains(&(predicted.as_secs_f64() * 1e3)), "{predicted:?}");
    }
}
