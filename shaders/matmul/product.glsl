// What the kernels of y = x w^T + b are told.

layout(push_constant, scalar) uniform Push {
    Matrix weight;
    uint64_t x;
    Floats bias;
    uint64_t y;
    Step step;
    uint row_kind;
    uint columns;
    uint outputs;
    uint has_bias;
};

// Stores a result that has its bias still to come.
void store_result(uint row, uint output_row, float result) {
    if (has_bias != 0) result += bias.at[output_row];
    Floats(y + uint64_t(row) * outputs * 4).at[output_row] = result;
}

// The first row and output of this workgroup's tile. Rows come first: workgroups that run side by side share weights, which
// are the larger part of what is read.
uvec2 first_of_tile(uint tile_rows, uint tile_outputs) {
    uint across = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
    return uvec2(gl_WorkGroupID.x * tile_rows, across * tile_outputs);
}
