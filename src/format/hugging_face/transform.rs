//! How a tensor of a directory becomes a tensor as GGUF files store it.

use std::borrow::Cow;

use cuelight_shaders::quant::Format;

/// A change of a tensor's values.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Keeps these indices of an axis, in this order.
    Take {
        /// The axis, from the outermost.
        axis: usize,
        /// The indices.
        indices: Vec<usize>,
    },
    /// Exchanges the two innermost axes. Blocks of values become float32.
    Transpose,
    /// Gives the same values another shape. Blocks of values keep their innermost axis.
    Reshape(Vec<usize>),
    /// Adds 1 to each value.
    AddOne,
    /// Replaces each value by minus its exponential.
    NegExp,
    /// Replaces each value by its exponential.
    Exp,
    /// Replaces each value by the logarithm of 1 plus its exponential.
    Softplus,
    /// Multiplies each index of the outermost axis by a factor.
    ScaleRows(Vec<f32>),
    /// Divides the values of each row by its length.
    UnitRows,
    /// Multiplies all indices of the outermost axis with one another, value by value.
    Product,
}

/// The values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Values<'a> {
    /// F32, F16 or BF16, or one with blocks along the innermost axis.
    pub format: Format,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    pub bytes: Cow<'a, [u8]>,
}

/// The format and shape of a tensor after a step; `None` when the shape does not allow the step.
pub(super) fn outcome(step: &Step, format: Format, shape: &[usize]) -> Option<(Format, Vec<usize>)> {
    let mut shape = shape.to_vec();
    let has_blocks = format.block_len() > 1;
    match step {
        // Blocks stay whole.
        Step::Take { axis, indices } if axis + 1 == shape.len() && whole_blocks(format, indices).is_none() => None,
        Step::Take { axis, indices } => {
            let length = shape.get_mut(*axis)?;
            if indices.iter().any(|index| index >= length) {
                return None;
            }
            *length = indices.len();
            Some((format, shape))
        }
        Step::Transpose => {
            let last = shape.len().checked_sub(1).filter(|last| *last > 0)?;
            shape.swap(last - 1, last);
            Some((if has_blocks { Format::F32 } else { format }, shape))
        }
        Step::Reshape(new) => {
            let fits = new.iter().product::<usize>() == shape.iter().product::<usize>();
            (fits && (!has_blocks || new.last() == shape.last())).then(|| (format, new.clone()))
        }
        Step::Product => shape.split_first().map(|(_, rest)| (Format::F32, rest.to_vec())),
        Step::ScaleRows(factors) => (shape.first() == Some(&factors.len())).then_some((Format::F32, shape)),
        Step::AddOne | Step::NegExp | Step::Exp | Step::Softplus | Step::UnitRows => Some((Format::F32, shape)),
    }
}

/// The blocks that consist of these indices of values; `None` if they are no whole blocks.
fn whole_blocks(format: Format, indices: &[usize]) -> Option<Vec<usize>> {
    let length = format.block_len();
    let block = |indices: &[usize]| {
        let first = indices.first().filter(|first| first.is_multiple_of(length))?;
        (indices.len() == length && indices.iter().copied().eq(*first..first + length)).then_some(first / length)
    };
    indices.chunks(length).map(block).collect()
}

impl Values<'_> {
    /// The values after a step that [`outcome`] allows.
    pub(super) fn apply(&self, step: &Step) -> Values<'static> {
        let (format, shape) = outcome(step, self.format, &self.shape).unwrap_or((self.format, Vec::new()));
        let bytes = match step {
            Step::Take { axis, indices } => self.take(*axis, indices),
            Step::Transpose if self.format.block_len() > 1 => self.dequantized().transposed(),
            Step::Transpose => self.transposed(),
            Step::Reshape(_) => self.bytes.to_vec(),
            Step::AddOne => self.map(|value| value + 1.0),
            Step::NegExp => self.map(|value| -value.exp()),
            Step::Exp => self.map(f32::exp),
            Step::Softplus => self.map(|value| f64::from(value).exp().ln_1p() as f32),
            Step::ScaleRows(factors) => self.scaled(factors),
            Step::UnitRows => self.in_unit_rows(),
            Step::Product => self.multiplied(),
        };
        Values { format, shape, bytes: bytes.into() }
    }

    fn value_bytes(&self) -> usize {
        self.format.block_bytes()
    }

    fn take(&self, axis: usize, indices: &[usize]) -> Vec<u8> {
        if axis + 1 == self.shape.len() && self.format.block_len() > 1 {
            return self.take_blocks(&whole_blocks(self.format, indices).unwrap_or_default());
        }
        let inner = self.format.row_bytes(self.shape[axis + 1..].iter().product()).unwrap_or(0);
        self.take_parts(self.shape[axis], inner, indices)
    }

    /// Keeps these blocks of each row.
    fn take_blocks(&self, blocks: &[usize]) -> Vec<u8> {
        let columns = self.shape.last().map_or(0, |columns| columns / self.format.block_len());
        self.take_parts(columns, self.format.block_bytes(), blocks)
    }

    /// Keeps these parts of each `count` parts with `inner` bytes.
    fn take_parts(&self, count: usize, inner: usize, indices: &[usize]) -> Vec<u8> {
        let outer = (count * inner).max(1);
        let mut taken = Vec::with_capacity(self.bytes.len() / count.max(1) * indices.len());
        for block in self.bytes.chunks_exact(outer) {
            for index in indices {
                taken.extend_from_slice(&block[index * inner..(index + 1) * inner]);
            }
        }
        taken
    }

    fn transposed(&self) -> Vec<u8> {
        let (size, dimensions) = (self.value_bytes(), self.shape.len());
        let (rows, columns) = (self.shape[dimensions - 2], self.shape[dimensions - 1]);
        let mut transposed = Vec::with_capacity(self.bytes.len());
        for matrix in self.bytes.chunks_exact((rows * columns * size).max(1)) {
            for column in 0..columns {
                for row in 0..rows {
                    let start = (row * columns + column) * size;
                    transposed.extend_from_slice(&matrix[start..start + size]);
                }
            }
        }
        transposed
    }

    fn dequantized(&self) -> Values<'static> {
        Values { format: Format::F32, shape: self.shape.clone(), bytes: self.map(|value| value).into() }
    }

    fn scaled(&self, factors: &[f32]) -> Vec<u8> {
        let mut values = self.floats();
        let row = (values.len() / factors.len().max(1)).max(1);
        for (row, factor) in values.chunks_mut(row).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    /// A row of zeros stays one.
    fn in_unit_rows(&self) -> Vec<u8> {
        let mut values = self.floats();
        for row in values.chunks_mut(self.shape.last().map_or(1, |columns| (*columns).max(1))) {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-12);
            row.iter_mut().for_each(|value| *value /= length);
        }
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    fn multiplied(&self) -> Vec<u8> {
        let values = self.floats();
        let mut factors = values.chunks(self.shape[1..].iter().product::<usize>().max(1));
        let mut product = factors.next().unwrap_or_default().to_vec();
        for factor in factors {
            product.iter_mut().zip(factor).for_each(|(value, factor)| *value *= factor);
        }
        product.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    fn map(&self, change: impl Fn(f32) -> f32) -> Vec<u8> {
        self.floats().into_iter().flat_map(|value| change(value).to_le_bytes()).collect()
    }

    fn floats(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.format.dequantize(&self.bytes, &mut values);
        values
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn values(shape: &[usize], values: &[f32]) -> Values<'static> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Values { format: Format::F32, shape: shape.to_vec(), bytes: bytes.into() }
    }

    #[test]
    fn indices_of_every_axis_are_taken_in_order() {
        let cube = values(&[2, 2, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let take = |axis, indices: &[usize]| cube.apply(&Step::Take { axis, indices: indices.to_vec() });
        assert_eq!(take(0, &[1]), values(&[1, 2, 2], &[4.0, 5.0, 6.0, 7.0]));
        assert_eq!(take(1, &[1, 0]), values(&[2, 2, 2], &[2.0, 3.0, 0.0, 1.0, 6.0, 7.0, 4.0, 5.0]));
        assert_eq!(take(2, &[1]), values(&[2, 2, 1], &[1.0, 3.0, 5.0, 7.0]));
    }

    #[test]
    fn whole_blocks_are_taken_with_their_scales() {
        let row: Vec<u8> = (0..3 * 36).map(|byte| byte / 36).collect();
        let blocks = Values { format: Format::F8_E4M3, shape: vec![1, 96], bytes: row.into() };
        let step = |indices| Step::Take { axis: 1, indices };
        let last_and_first = step((64..96).chain(0..32).collect());
        let expected: Vec<u8> = [2; 36].into_iter().chain([0; 36]).collect();
        let taken = blocks.apply(&last_and_first);
        assert_eq!((&taken.shape[..], &taken.bytes[..]), (&[1, 64][..], &expected[..]));
        for broken in [step((1..33).collect()), step((0..31).collect()), step((0..32).rev().collect())] {
            assert_eq!(outcome(&broken, Format::F8_E4M3, &[1, 96]), None, "{broken:?}");
        }
    }

    #[test]
    fn matrices_are_transposed_one_by_one() {
        let two = values(&[2, 1, 2], &[0.0, 1.0, 2.0, 3.0]);
        assert_eq!(two.apply(&Step::Transpose), values(&[2, 2, 1], &[0.0, 1.0, 2.0, 3.0]));
        let one = values(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(one.apply(&Step::Transpose), values(&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    }

    #[test]
    fn blocks_are_dequantized_before_they_are_transposed() {
        let blocks = Values { format: Format::F8_E4M3, shape: vec![2, 32], bytes: vec![0; 72].into() };
        assert_eq!(blocks.apply(&Step::Transpose), values(&[32, 2], &[0.0; 64]));
    }

    #[test]
    fn shapes_change_without_values() {
        let row = values(&[4], &[0.0, 1.0, 2.0, 3.0]);
        assert_eq!(row.apply(&Step::Reshape(vec![2, 2])), values(&[2, 2], &[0.0, 1.0, 2.0, 3.0]));
        assert_eq!(outcome(&Step::Reshape(vec![3]), Format::F32, &[4]), None);
        assert_eq!(outcome(&Step::Reshape(vec![32, 2]), Format::F8_E4M3, &[2, 32]), None);
    }

    #[test]
    fn arithmetic_is_in_float32() {
        let half = Values { format: Format::BF16, shape: vec![1], bytes: vec![0x80, 0x3b].into() };
        assert_eq!(half.apply(&Step::AddOne), values(&[1], &[1.003_906_3]));
        assert_eq!(values(&[1], &[0.0]).apply(&Step::NegExp), values(&[1], &[-1.0]));
        assert_eq!(values(&[2], &[0.0, 40.0]).apply(&Step::Softplus), values(&[2], &[std::f32::consts::LN_2, 40.0]));
        let units = values(&[3, 2], &[3.0, 4.0, 0.0, 0.0, 0.0, -2.0]).apply(&Step::UnitRows);
        assert_eq!(units, values(&[3, 2], &[0.6, 0.8, 0.0, 0.0, 0.0, -1.0]));
        let rows = values(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).apply(&Step::ScaleRows(vec![2.0, 0.5]));
        assert_eq!(rows, values(&[2, 2], &[2.0, 4.0, 1.5, 2.0]));
        assert_eq!(outcome(&Step::ScaleRows(vec![1.0]), Format::F32, &[2]), None);
        let factors = values(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, -6.0]);
        assert_eq!(factors.apply(&Step::Product), values(&[3], &[4.0, 10.0, -18.0]));
    }

    #[test]
    fn steps_that_a_shape_does_not_allow_have_no_outcome() {
        let take = |axis, index| Step::Take { axis, indices: vec![index] };
        assert_eq!(outcome(&take(1, 0), Format::F8_E4M3, &[1, 64]), None);
        assert_eq!(outcome(&take(0, 2), Format::F32, &[2]), None);
        assert_eq!(outcome(&take(1, 0), Format::F32, &[2]), None);
        assert_eq!(outcome(&Step::Transpose, Format::F32, &[2]), None);
    }
}
