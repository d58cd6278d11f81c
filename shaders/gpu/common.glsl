// What every shader shares: how it sees memory, and the step that it computes.
//
// Memory is reached by address, so that nothing is bound and no tensor is too large. A row index inside a value is 32 bits;
// whatever may pass 4 GiB is added to the address in 64.

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

// The rows of a step; `step.rs` writes it.
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Step {
    uint rows;
    uint selected;
    uint runs;             // of rows of one sequence
    uint unused;
    Words tokens;
    Words positions;
    Words sequences;
    Words selection;
    Words table_starts;
    Words tables;
    Words run_starts;      // the first row of each run
};

// Which count of rows a dispatch goes by, as in `RowCount`.
uint count_rows(Step step, uint kind) {
    return kind == 0 ? step.rows : step.selected;
}

// The index of this workgroup where x alone does not suffice: z counts further stretches of x.
uint spread_group() {
    return gl_WorkGroupID.x + gl_WorkGroupID.z * gl_NumWorkGroups.x;
}
