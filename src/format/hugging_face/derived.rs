//! Tensors that are made from others of the file when they are first read.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::{Bytes, SharedBytes};

use super::transform::{Step, Values};

/// A matrix that another tool packed.
pub(super) trait Unpack: Send + Sync {
    /// The matrix in blocks.
    fn unpack(&self) -> Vec<u8>;

    /// Releases the memory of mapped files.
    fn release(&self);
}

/// A tensor of a file, or several that hold one matrix.
pub(super) enum Part {
    /// Used as it is stored.
    Mapped(SharedBytes),
    /// Unpacked first.
    Packed(Arc<dyn Unpack>),
}

impl Part {
    fn read(&self) -> Cow<'_, [u8]> {
        match self {
            Part::Mapped(bytes) => bytes.as_slice().into(),
            Part::Packed(packed) => packed.unpack().into(),
        }
    }

    fn release(&self) {
        match self {
            Part::Mapped(bytes) => bytes.release(),
            Part::Packed(packed) => packed.release(),
        }
    }
}

/// A tensor that is not stored as the engine needs it. It is made once and then stays in memory.
pub(super) struct Derived {
    /// Tensors of one shape and format, joined along a new outermost axis if there are several.
    pub sources: Vec<Part>,
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
            [one] => one.read(),
            all => all.iter().map(Part::read).collect::<Vec<_>>().concat().into(),
        };
        let mut values = Values { format: self.format, shape: self.shape.clone(), bytes: joined };
        for step in &self.steps {
            values = values.apply(step);
        }
        self.sources.iter().for_each(Part::release);
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

    /// Those of tensors that are only joined.
    fn pieces(&self, range: Range<usize>) -> Vec<SharedBytes> {
        let is_joined = self.steps.iter().all(|step| matches!(step, Step::Reshape(_)));
        let mapped = |part: &Part| if let Part::Mapped(bytes) = part { Some(bytes.clone()) } else { None };
        let mapped = self.sources.iter().map(mapped).collect::<Option<Vec<_>>>();
        mapped.filter(|_| is_joined && range == (0..self.byte_len)).unwrap_or_default()
    }
}
