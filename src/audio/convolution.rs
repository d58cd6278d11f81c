//! A convolution over three neighbouring rows, as a matrix for rows that are gathered before it.

/// For each of `count` rows, a `stride` apart: the values of the row before it, of itself and of the one after it. A value of the
/// three comes after the other, as the kernel stores them; rows outside are zero.
#[must_use]
pub fn gathered(values: &[f32], width: usize, count: usize, stride: usize) -> Vec<f32> {
    let rows = values.len() / width.max(1);
    let mut gathered = vec![0.0; count * 3 * width];
    for (index, row) in gathered.chunks_exact_mut(3 * width).enumerate() {
        for tap in 0..3 {
            let Some(from) = (stride * index + tap).checked_sub(1).filter(|from| *from < rows) else { continue };
            let source = &values[from * width..][..width];
            row.iter_mut().skip(tap).step_by(3).zip(source).for_each(|(value, source)| *value = *source);
        }
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_gathered_value_by_value_with_zeros_outside() {
        let values = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let every = gathered(&values, 2, 3, 1);
        assert_eq!(every[..6], [0.0, 1.0, 2.0, 0.0, 10.0, 20.0]);
        assert_eq!(every[12..], [2.0, 3.0, 0.0, 20.0, 30.0, 0.0]);
        let every_second = gathered(&values, 2, 2, 2);
        assert_eq!(every_second, [&every[..6], &every[12..]].concat());
    }
}
