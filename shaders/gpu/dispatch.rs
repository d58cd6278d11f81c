//! A dispatch, and the arguments from which an op makes one.

use super::limits::DeviceLimits;
use super::module::Module;
use super::push::{Push, word};
use super::region::Region;
use super::weight::DeviceWeight;
use crate::kv::DeviceKv;
use crate::lora::target::DeviceAdapters;
use crate::recurrent::DeviceStates;

/// The rows of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    /// All rows of the step. The value is their maximum number.
    All(usize),
    /// The rows whose logits are requested. The value is their maximum number.
    Selected(usize),
    /// The rows whose hidden values are requested. The value is their maximum number.
    Hidden(usize),
}

impl RowCount {
    /// The maximum number of rows.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            RowCount::All(most) | RowCount::Selected(most) | RowCount::Hidden(most) => most,
        }
    }

    /// The number that represents the kind of rows in shaders (`count_rows`).
    #[must_use]
    pub fn kind(self) -> u32 {
        match self {
            RowCount::All(_) => 0,
            RowCount::Selected(_) => 1,
            RowCount::Hidden(_) => 2,
        }
    }
}

/// A value on the device: [rows, width] of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceValue {
    /// The memory of the value.
    pub region: Region,
    /// Values in a row.
    pub width: usize,
}

/// The arguments from which an op makes its dispatches.
#[derive(Clone, Copy)]
pub struct GpuArgs<'a> {
    /// The device.
    pub device: &'a DeviceLimits,
    /// Whether the bits of a row must not depend on the bucket.
    pub deterministic: bool,
    /// The address of the step's rows (see [`StepLayout`](super::StepLayout)).
    pub step: u64,
    /// The rows of the inputs.
    pub rows: RowCount,
    /// The maximum number of rows whose logits are requested.
    pub selected: usize,
    /// The maximum number of rows whose hidden values are requested.
    pub hidden: usize,
    /// The maximum number of sequences of the rows.
    pub sequences: usize,
    /// The maximum length of a sequence in the bucket.
    pub context_tokens: usize,
    /// The inputs.
    pub inputs: &'a [DeviceValue],
    /// The outputs.
    pub outputs: &'a [DeviceValue],
    /// The weights of [`Op::weights`](crate::op::Op::weights) on the device.
    pub weights: &'a [DeviceWeight],
    /// The tables of [`Op::gpu_tables`](crate::op::Op::gpu_tables) on the device.
    pub tables: &'a [Region],
    /// The KV cache.
    pub kv: &'a DeviceKv,
    /// The recurrent state.
    pub states: &'a DeviceStates,
    /// The changes of adapters.
    pub adapters: &'a DeviceAdapters,
    /// Scratch memory of at least [`Op::gpu_scratch_bytes`](crate::op::Op::gpu_scratch_bytes).
    pub scratch: Region,
}

/// One run of a shader.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// The shader.
    pub module: Module,
    /// Its specialization constants as (id, value); id 0 is the size of the workgroup.
    pub constants: Vec<(u32, u32)>,
    /// Its push constants.
    pub push: Push,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// The memory it reads that other dispatches write.
    pub reads: Vec<Region>,
    /// The memory it writes.
    pub writes: Vec<Region>,
}

impl GpuArgs<'_> {
    /// The workgroups that cover `count` elements with `each` elements per workgroup: along x, and along z where x is
    /// too short. `y` is the size along y.
    ///
    /// A shader computes the index of its workgroup with `spread_group`.
    #[must_use]
    pub fn spread(&self, count: usize, each: usize, y: usize) -> [u32; 3] {
        let groups = count.div_ceil(each);
        let x = groups.min(self.device.max_groups[0] as usize).max(1);
        [x, y, groups.div_ceil(x)].map(word)
    }

    /// A moderate workgroup size, for work that requires no particular one.
    #[must_use]
    pub fn workgroup_size(&self) -> u32 {
        const USUAL: u32 = 64;
        self.device.subgroup_size.max(USUAL).min(self.device.max_workgroup_size)
    }

    /// The size of a workgroup that handles `values` values by itself: four each, if the device allows that many invocations.
    /// A single workgroup does not hide the latency of memory by other work, so all its values are loaded at once.
    #[must_use]
    pub fn workgroup_size_for(&self, values: usize) -> u32 {
        let wanted = word(values).div_ceil(4).next_power_of_two();
        wanted.max(self.device.subgroup_size).min(1 << self.device.max_workgroup_size.ilog2())
    }

    /// A dispatch with one invocation for each of `columns` elements of each row.
    #[must_use]
    pub fn each_column(&self, module: Module, push: Push, columns: usize) -> Dispatch {
        let size = self.workgroup_size();
        let groups = [columns.div_ceil(size as usize), self.rows.most(), 1];
        Dispatch {
            module,
            constants: vec![(0, size)],
            push,
            groups: groups.map(word),
            reads: self.inputs.iter().map(|input| input.region).collect(),
            writes: self.outputs.iter().map(|output| output.region).collect(),
        }
    }

    /// The push constants of `gpu/elementwise.glsl`: one or two inputs, and an output of the same shape.
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
