// What all shaders share: access to memory, and the rows of the step.
//
// Memory is accessed by address, so there are no bindings and no limit on the size of a tensor. Indices inside a value
// have 32 bits; offsets that may exceed 4 GiB are added to the address in 64 bits.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer WordPairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer WordQuads { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer FloatQuads { vec4 at[]; };

// The rows of a step, as `step.rs` writes them.
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Step {
    uint rows;
    uint selected;
    uint runs;             // of rows of one sequence
    uint hidden;           // rows whose hidden values are requested
    Words tokens;
    Words positions;
    Words sequences;
    Words selection;
    Words table_starts;    // of each sequence: where `tables` has its blocks, and those of layers that keep windows
    Words tables;
    Words run_starts;      // the first row of each run
    Words state_from;      // of each sequence: the slot before its first row, or NO_SLOT
    Words state_to;        // of each row: the slot that gets the state after it, or NO_SLOT
    Words hidden_selection;
    Words sights;          // of each sequence: what its rows see of each other, and the position of the first
    Words denoised;        // of each selected row: the parameters of its sampling, and the factor of its logits
    Words second_texts;    // of each sequence: the position of the first row of its second text, or NO_SECOND_TEXT
    Words rope_positions;  // of each row: three positions, of time and of the row and column of an image
    Words adapters;        // of each sequence: the slot of its adapter, or NO_ADAPTER, and the factor on its changes
};

const uint NO_SLOT = 0xffffffff;
const uint NO_ADAPTER = 0xffffffff;

// The values of `Sight`.
const uint SIGHT_BEFORE = 0;
const uint SIGHT_EACH_OTHER = 1;
const uint SIGHT_CANVAS = 2;

// The number of rows of a dispatch; `kind` is that of `RowCount`.
uint count_rows(Step step, uint kind) {
    return kind == 0 ? step.rows : kind == 1 ? step.selected : step.hidden;
}

// The index of this workgroup where x alone is too short: z counts further ranges of x.
uint spread_group() {
    return gl_WorkGroupID.x + gl_WorkGroupID.z * gl_NumWorkGroups.x;
}
