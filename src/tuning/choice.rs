//! Chooses from measured rates. These are pure functions.

/// A gain below this is noise, and the default stays.
pub const CLEAR_GAIN: f64 = 1.05;

/// The rates of one candidate, one for each round; larger is better.
#[derive(Debug, Clone)]
pub struct Samples<T> {
    /// The candidate.
    pub candidate: T,
    /// Its rate in each round.
    pub rates: Vec<f64>,
}

/// The median; 0 without values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// By which factor the rates are above those of the base. Both are compared round by round, because the load of a machine
/// changes between rounds; the median ratio counts. 1 without a common round.
#[must_use]
pub fn gain(rates: &[f64], base: &[f64]) -> f64 {
    let ratios: Vec<f64> =
        rates.iter().zip(base).map(|(rate, base)| rate / base).filter(|ratio| ratio.is_finite()).collect();
    if ratios.is_empty() { 1.0 } else { median(ratios) }
}

/// The gain of each candidate over the default.
#[must_use]
pub fn gains<T: Copy + PartialEq>(default: T, samples: &[Samples<T>]) -> Vec<(T, f64)> {
    let base = samples.iter().find(|samples| samples.candidate == default).map_or(&[][..], |samples| &samples.rates);
    samples.iter().map(|samples| (samples.candidate, gain(&samples.rates, base))).collect()
}

/// The geometric mean of the gains of the same candidates in several measurements.
#[must_use]
pub fn mean_gains<T: Copy>(of_each: &[Vec<(T, f64)>]) -> Vec<(T, f64)> {
    let Some(first) = of_each.first() else { return Vec::new() };
    let mean = |index: usize| {
        let product: f64 = of_each.iter().filter_map(|gains| gains.get(index)).map(|(_, gain)| gain).product();
        product.powf(1.0 / of_each.len() as f64)
    };
    first.iter().enumerate().map(|(index, (candidate, _))| (*candidate, mean(index))).collect()
}

/// The candidate with the largest gain if that is clear, otherwise the default.
#[must_use]
pub fn best<T: Copy>(default: T, gains: &[(T, f64)]) -> T {
    let best = gains.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, gain)| *gain > CLEAR_GAIN).map_or(default, |(candidate, _)| *candidate)
}

/// Whether fewer threads are as fast: the gain of all threads over fewer is clear neither for reads nor for products.
#[must_use]
pub fn fewer_threads_suffice(gain_of_reads: f64, gain_of_products: f64) -> bool {
    gain_of_reads <= CLEAR_GAIN && gain_of_products <= CLEAR_GAIN
}

/// The fewest rows from which tiles are used. `gains` has for some numbers of rows, ascending, the gain of tiles over dot
/// products. The default moves only past rows at which the other is clearly faster.
#[must_use]
pub fn tile_rows(default: usize, gains: &[(usize, f64)]) -> usize {
    let below = gains.iter().rev().filter(|(rows, _)| *rows < default);
    let faster = below.take_while(|(_, gain)| *gain > CLEAR_GAIN).last();
    if let Some((rows, _)) = faster {
        return *rows;
    }
    let above = gains.iter().filter(|(rows, _)| *rows >= default);
    let slower = above.take_while(|(_, gain)| gain * CLEAR_GAIN < 1.0).last();
    slower.map_or(default, |(rows, _)| rows + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rates: &[(usize, &[f64])]) -> Vec<Samples<usize>> {
        rates.iter().map(|(candidate, rates)| Samples { candidate: *candidate, rates: rates.to_vec() }).collect()
    }

    fn chosen(rates: &[(usize, &[f64])]) -> usize {
        best(8, &gains(8, &samples(rates)))
    }

    #[test]
    fn the_default_stays_unless_the_gain_is_clear() {
        assert_eq!(chosen(&[(0, &[10.0; 5]), (8, &[10.0; 5]), (16, &[10.4; 5])]), 8);
        assert_eq!(chosen(&[(0, &[10.0; 5]), (8, &[10.0; 5]), (16, &[11.0; 5])]), 16);
        assert_eq!(chosen(&[(0, &[13.0; 5]), (8, &[10.0; 5]), (16, &[11.0; 5])]), 0);
        assert_eq!(chosen(&[(8, &[10.0; 5])]), 8);
        assert_eq!(chosen(&[]), 8);
    }

    #[test]
    fn a_machine_that_is_busy_for_some_rounds_changes_nothing() {
        // Half of the speed in two rounds for all candidates, and a slow sample of the default alone.
        let base = [10.0, 5.0, 5.0, 10.0, 10.0, 2.0, 10.0];
        let other = [10.1, 5.1, 5.0, 10.0, 10.1, 10.0, 9.9];
        assert_eq!(chosen(&[(8, &base), (16, &other)]), 8);
        // A real gain is seen through the same noise.
        let faster: Vec<f64> = other.iter().map(|rate| rate * 1.2).collect();
        assert_eq!(chosen(&[(8, &base), (16, &faster)]), 16);
    }

    #[test]
    fn rates_that_are_not_numbers_do_not_count() {
        assert_eq!(chosen(&[(8, &[0.0; 3]), (16, &[1.0; 3])]), 8);
        assert_eq!(chosen(&[(8, &[f64::NAN; 3]), (16, &[1.0; 3])]), 8);
        assert!((gain(&[], &[1.0]) - 1.0).abs() < f64::EPSILON && median(Vec::new()) == 0.0);
    }

    #[test]
    fn a_candidate_must_be_faster_on_average_over_the_formats() {
        let mean = mean_gains(&[vec![(0, 1.25), (2, 1.1), (8, 1.0)], vec![(0, 0.8), (2, 1.1), (8, 1.0)]]);
        assert_eq!(mean.iter().map(|(candidate, _)| *candidate).collect::<Vec<_>>(), [0, 2, 8]);
        assert!((mean[0].1 - 1.0).abs() < 1e-9 && (mean[1].1 - 1.1).abs() < 1e-9, "{mean:?}");
        assert_eq!(best(8, &mean), 2);
        assert!(mean_gains::<usize>(&[]).is_empty());
    }

    #[test]
    fn threads_are_left_out_only_if_they_help_neither_reads_nor_products() {
        assert!(fewer_threads_suffice(1.0, 1.02) && fewer_threads_suffice(0.8, 0.9));
        assert!(!fewer_threads_suffice(1.28, 1.0) && !fewer_threads_suffice(1.0, 1.3));
    }

    #[test]
    fn tiles_start_at_the_rows_from_which_they_are_not_slower() {
        assert_eq!(tile_rows(5, &[(2, 0.5), (4, 0.9), (5, 1.2), (8, 2.0)]), 5);
        assert_eq!(tile_rows(5, &[(2, 0.9), (3, 1.2), (4, 1.1), (5, 1.2)]), 3);
        assert_eq!(tile_rows(5, &[(2, 1.2), (3, 1.0), (4, 1.1), (5, 1.2)]), 4);
        assert_eq!(tile_rows(5, &[(4, 0.6), (5, 0.7), (8, 0.8), (12, 1.3)]), 9);
        assert_eq!(tile_rows(5, &[(4, 0.6), (5, 0.97), (8, 0.8), (12, 1.3)]), 5);
        assert_eq!(tile_rows(5, &[]), 5);
    }
}
