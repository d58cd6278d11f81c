//! What an op tells a GPU: which shaders to run, as data.
//!
//! - [`module`]: the compiled shaders
//! - [`step`]: how a step's rows lie in the device's memory
//! - [`weight`]: how weights lie there
//! - this file: a [`Dispatch`], and what an op knows when it makes them
//!
//! An op says what it runs, what that reads and what it writes; it calls nothing. Recording, barriers and memory are the
//! backend's, and the same for every op.
//!
//! Dispatches are made for a *bucket*: a number of rows that a step may have at most. How many it has, and where, is read on
//! the device, so that what was recorded once serves every step of the bucket.

pub mod module;
pub mod step;
pub mod weight;

use crate::attention::gpu::DeviceKv;
pub use module::Module;
pub use step::StepLayout;
pub use weight::DeviceWeight;

/// A stretch of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// Where it starts.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Region {
    /// Whether any byte belongs to both.
    #[must_use]
    pub fn overlaps(&self, other: &Region) -> bool {
        let end = |region: &Region| region.address + region.bytes;
        self.address.max(other.address) < end(self).min(end(other))
    }

    /// Its first bytes, and the rest.
    ///
    /// # Panics
    /// When it has not as many.
    #[must_use]
    pub fn split_at(&self, bytes: u64) -> (Region, Region) {
        assert!(bytes <= self.bytes, "a region of {} bytes has no {bytes}", self.bytes);
        (Region { bytes, ..*self }, Region { address: self.address + bytes, bytes: self.bytes - bytes })
    }
}

/// What a device can do, as far as ops choose by it. All of it is asked of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Invocations that run in step.
    pub subgroup_size: u32,
    /// Most invocations in a workgroup.
    pub max_workgroup_size: u32,
    /// Most workgroups in each dimension.
    pub max_groups: [u32; 3],
    /// Memory that a workgroup shares, in bytes.
    pub shared_memory_bytes: u32,
    /// M, N and K of matrices that a subgroup multiplies: float16 times float16, summed in float32. Only a shape that
    /// [`cooperative_shape_fits`](crate::matmul::cooperative_shape_fits).
    pub cooperative_matrix: Option<[u32; 3]>,
}

/// Which rows a value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    /// Those of the step, at most so many.
    All(usize),
    /// Those whose logits are wanted, at most so many.
    Selected(usize),
}

impl RowCount {
    /// The most that there may be.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            RowCount::All(most) | RowCount::Selected(most) => most,
        }
    }

    /// What stands for it in shaders (`count_rows`).
    #[must_use]
    pub fn kind(self) -> u32 {
        match self {
            RowCount::All(_) => 0,
            RowCount::Selected(_) => 1,
        }
    }
}

/// A value: [rows, width] of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceValue {
    /// Where it is.
    pub region: Region,
    /// Values in a row.
    pub width: usize,
}

/// What an op knows when it says what to run.
#[derive(Clone, Copy)]
pub struct GpuArgs<'a> {
    /// The device.
    pub device: &'a DeviceLimits,
    /// Whether a row's bits must not depend on the bucket.
    pub deterministic: bool,
    /// Where the step's rows are (see [`StepLayout`]).
    pub step: u64,
    /// The rows of the inputs.
    pub rows: RowCount,
    /// Most rows whose logits are wanted.
    pub selected: usize,
    /// The most sequences that the rows are of.
    pub sequences: usize,
    /// The longest that a sequence of the bucket is.
    pub context_tokens: usize,
    /// The inputs.
    pub inputs: &'a [DeviceValue],
    /// The outputs.
    pub outputs: &'a [DeviceValue],
    /// What [`Op::weights`](crate::op::Op::weights) has, on the device.
    pub weights: &'a [DeviceWeight],
    /// What [`Op::gpu_tables`](crate::op::Op::gpu_tables) has, on the device.
    pub tables: &'a [Region],
    /// The KV cache.
    pub kv: &'a DeviceKv,
    /// Memory to work in, at least what [`Op::gpu_scratch_bytes`](crate::op::Op::gpu_scratch_bytes) asks for.
    pub scratch: Region,
}

/// One run of a shader.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// The shader.
    pub module: Module,
    /// Its specialization constants, (id, value); id 0 is the workgroup's size.
    pub constants: Vec<(u32, u32)>,
    /// Its push constants.
    pub push: Push,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// What it reads of what other dispatches write.
    pub reads: Vec<Region>,
    /// What it writes.
    pub writes: Vec<Region>,
}

/// Push constants in the scalar layout: addresses first, then words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Push {
    bytes: Vec<u8>,
}

impl Push {
    /// What every device has room for.
    pub const MAX_BYTES: usize = 128;

    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Push::default()
    }

    /// Adds an address.
    ///
    /// # Panics
    /// When a word came before: an address must be aligned.
    #[must_use]
    pub fn address(mut self, address: u64) -> Self {
        assert!(self.bytes.len().is_multiple_of(size_of::<u64>()), "addresses come before words");
        self.bytes.extend(address.to_le_bytes());
        self
    }

    /// Adds an integer.
    ///
    /// # Panics
    /// When it does not fit 32 bits: sizes of values are checked when a model is planned.
    #[must_use]
    pub fn size(self, value: usize) -> Self {
        self.word(u32::try_from(value).expect("a dimension of a value fits 32 bits"))
    }

    /// Adds a word.
    #[must_use]
    pub fn word(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.word(value.to_bits())
    }

    /// The bytes, in order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl GpuArgs<'_> {
    /// Workgroups that cover `count` things with `each` of them, x first and z where x has not enough.
    ///
    /// The shader finds its own with `spread_group`; y is left to the caller.
    #[must_use]
    pub fn spread(&self, count: usize, each: usize, y: usize) -> [u32; 3] {
        let groups = count.div_ceil(each);
        let x = groups.min(self.device.max_groups[0] as usize).max(1);
        [x, y, groups.div_ceil(x)].map(|groups| u32::try_from(groups).unwrap_or(u32::MAX))
    }

    /// A workgroup of a moderate size for work without a shape of its own.
    #[must_use]
    pub fn workgroup_size(&self) -> u32 {
        const USUAL: u32 = 64;
        self.device.subgroup_size.max(USUAL).min(self.device.max_workgroup_size)
    }

    /// A dispatch with an invocation for each of `columns` things in each row.
    #[must_use]
    pub fn each_column(&self, module: Module, push: Push, columns: usize) -> Dispatch {
        let size = self.workgroup_size();
        let groups = [columns.div_ceil(size as usize), self.rows.most(), 1];
        Dispatch {
            module,
            constants: vec![(0, size)],
            push,
            groups: groups.map(|groups| u32::try_from(groups).unwrap_or(u32::MAX)),
            reads: self.inputs.iter().map(|input| input.region).collect(),
            writes: self.outputs.iter().map(|output| output.region).collect(),
        }
    }

    /// The push constants of `gpu/elementwise.glsl`: one or two inputs, an output of their shape.
    #[must_use]
    pub fn elementwise(&self, variant: u32, parameter: f32) -> Push {
        let of = |value: Option<&DeviceValue>| value.map_or(0, |value| value.region.address);
        Push::new()
            .address(of(self.inputs.first()))
            .address(of(self.inputs.get(1)))
            .address(of(self.outputs.first()))
            .address(self.step)
            .word(self.rows.kind())
            .size(self.outputs.first().map_or(0, |output| output.width))
            .word(variant)
            .float(parameter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_overlap_where_they_share_a_byte() {
        let region = |address, bytes| Region { address, bytes };
        assert!(region(0, 10).overlaps(&region(9, 1)));
        assert!(!region(0, 10).overlaps(&region(10, 5)));
        assert!(!region(0, 0).overlaps(&region(0, 0)));
        assert!(!region(0, 10).overlaps(&region(5, 0)));
    }

    #[test]
    fn push_constants_are_laid_out_as_scalars() {
        let push = Push::new().address(1).word(2).float(1.0).size(7);
        assert_eq!(push.as_bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 128, 63, 7, 0, 0, 0]);
    }
}
