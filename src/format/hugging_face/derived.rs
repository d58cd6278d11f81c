//! Tensors that are made from others of the file when they are first read.

use std::borrow::Cow;
use std::sync::OnceLock;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes};

use super::transform::{Step, Values};

/// A tensor that is not stored as the engine needs it. It is made once and then stays in memory.
pub(super) struct Derived {
    /// Tensors of one shape and format, joined along a new outermost axis if there are several.
    pub sources: Vec<SharedBytes>,
    pub format: Format,
    /// The shape of the joined tensor.
    pub shape: Vec<usize>,
    pub steps: Vec<Step>,
    /// Bytes of the result.
    pub byte_len: usize,
    pub made: OnceLock<Vec<u8>>,
}

impl Derived {
    fn make(&self) -> Vec<u8> {
        let joined: Cow<'_, [u8]> = match &self.sources[..] {
            [one] => one.as_slice().into(),
            all => all.iter().map(SharedBytes::as_slice).collect::<Vec<&[u8]>>().concat().into(),
        };
        let mut values = Values { format: self.format, shape: self.shape.clone(), bytes: joined };
        for step in &self.steps {
            values = values.apply(step);
        }
        self.sources.iter().for_each(SharedBytes::release);
        values.bytes.into_owned()
    }
}

impl AsRef<[u8]> for Derived {
    fn as_ref(&self) -> &[u8] {
        self.made.get_or_init(|| self.make())
    }
}

impl Bytes for Derived {
    fn byte_len(&self) -> usize {
        self.byte_len
    }
}
