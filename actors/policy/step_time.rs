//! How long a step takes, learned from those that were measured.
//!
//! A step reads all weights once, computes something with each row, and reads the keys and values of every token that
//! each row attends to. So its time is close to `base + per_row * rows + per_attended * attended`, on any device; the
//! three are fitted to the last steps by least squares of the relative error, none below zero. Steps with prompt rows
//! and steps without are remembered apart, so that a long run of one kind does not wash out what the other taught.

use std::collections::VecDeque;
use std::time::Duration;

/// What a step has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    /// Tokens computed.
    pub rows: usize,
    /// Tokens that are read, summed over rows.
    pub attended: usize,
}

impl Work {
    /// `rows` consecutive tokens of a sequence, the first at `position`.
    pub fn of(position: usize, rows: usize) -> Self {
        Work { rows, attended: rows * position + rows * (rows + 1) / 2 }
    }

    pub fn add(&mut self, other: Work) {
        self.rows += other.rows;
        self.attended += other.attended;
    }
}

/// Steps of each kind that are remembered.
const REMEMBERED: usize = 48;

/// The unknowns: base, per row, per attended token.
const TERMS: usize = 3;

/// The fitted times.
#[derive(Debug, Default)]
pub(super) struct StepTime {
    decode: VecDeque<(Work, f64)>,
    prefill: VecDeque<(Work, f64)>,
    /// Seconds: base, per row, per attended token.
    fit: Option<[f64; TERMS]>,
}

impl StepTime {
    /// Takes a measured step into account; `has_prompt_rows` tells of which kind it was.
    pub fn observe(&mut self, work: Work, has_prompt_rows: bool, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        if work.rows == 0 || seconds <= 0.0 {
            return;
        }
        let kind = if has_prompt_rows { &mut self.prefill } else { &mut self.decode };
        if kind.len() == REMEMBERED {
            kind.pop_front();
        }
        kind.push_back((work, seconds));
        self.fit = fit(self.decode.iter().chain(&self.prefill));
    }

    /// Whether steps with prompt rows were seen.
    pub fn knows_prefill(&self) -> bool {
        !self.prefill.is_empty()
    }

    /// The time such a step takes; `None` before anything was measured.
    pub fn predict(&self, work: Work) -> Option<Duration> {
        let [base, per_row, per_attended] = self.fit?;
        let seconds = base + per_row * work.rows as f64 + per_attended * work.attended as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Time that `tokens` rows of prompts take beyond a step's base, at no depth.
    pub fn of_rows(&self, tokens: usize) -> Option<Duration> {
        Duration::try_from_secs_f64(self.fit?[1] * tokens as f64).ok()
    }

    /// How many rows of one sequence from `position` on can be added to `work` within `limit`.
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
        // The stable form of the positive root; `square` may be 0.
        Some((2.0 * left / (linear + (linear * linear + 4.0 * square * left).sqrt())) as usize)
    }
}

/// Least squares with no term below zero: of all subsets of terms the best whose solution is not negative.
fn fit<'a>(steps: impl Iterator<Item = &'a (Work, f64)>) -> Option<[f64; TERMS]> {
    let (mut normal, mut right, mut count) = ([[0.0; TERMS]; TERMS], [0.0; TERMS], 0.0);
    for (work, seconds) in steps {
        // Divided by the measured time, each row of the system asks for 1: the error is relative.
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

/// Solves the normal equations for the terms in `subset` by Gauss' elimination; `None` when they are not independent.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A machine with known times, in microseconds.
    fn machine(work: Work) -> Duration {
        Duration::from_micros(6000 + 1500 * work.rows as u64) + Duration::from_nanos(800 * work.attended as u64)
    }

    fn learned() -> StepTime {
        let mut step_time = StepTime::default();
        for i in 0..200 {
            let mut work = Work::default();
            (0..1 + i % 8).for_each(|_| work.add(Work::of(100 + 3 * i, 1)));
            let prefills = i % 5 == 0;
            if prefills {
                work.add(Work::of(16 * i, 10 + i % 60));
            }
            step_time.observe(work, prefills, machine(work));
        }
        step_time
    }

    #[test]
    fn nothing_is_predicted_before_anything_was_measured() {
        assert_eq!(StepTime::default().predict(Work::of(0, 1)), None);
        assert_eq!(StepTime::default().rows_within(Duration::from_secs(1), Work::default(), 0), None);
    }

    #[test]
    fn the_time_of_a_step_is_learned() {
        let step_time = learned();
        for work in [Work::of(50, 1), Work::of(4000, 1), Work::of(0, 300), Work::of(3000, 64)] {
            let (predicted, real) = (step_time.predict(work).unwrap().as_secs_f64(), machine(work).as_secs_f64());
            assert!((predicted / real - 1.0).abs() < 0.01, "{work:?}: {predicted} for {real}");
        }
    }

    #[test]
    fn a_chunk_fills_the_time_that_is_left_and_no_more() {
        let step_time = learned();
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
    fn steps_that_are_all_alike_give_no_nonsense() {
        let mut step_time = StepTime::default();
        for _ in 0..100 {
            step_time.observe(Work::of(10, 1), false, Duration::from_millis(8));
        }
        let predicted = step_time.predict(Work::of(10, 1)).unwrap();
        assert!((7.9..8.1).contains(&(predicted.as_secs_f64() * 1e3)), "{predicted:?}");
    }
}
