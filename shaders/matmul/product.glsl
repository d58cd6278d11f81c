// What the kernels of y = x w^T + b are told.

layout(push_constant, scalar) uniform Push {
    Matrix weight;
    Matrix second;        // of a gated product
    uint64_t x;
    Floats bias;          // [outputs], or none
    Floats second_bias;
    uint64_t y;
    Step step;
    uint row_kind;
    uint columns;
    uint outputs;
};

// A result with its bias.
float biased(Floats bias, uint output_row, float result) {
    return uint64_t(bias) == 0 ? result : result + bias.at[output_row];
}

void store_result(uint row, uint output_row, float result) {
    Floats(y + uint64_t(row) * outputs * 4).at[output_row] = result;
}

// Which tile this workgroup has, down and across. Rows come first: workgroups that run side by side share weights, which are
// the larger part of what is read.
uvec2 tile_index() {
    return uvec2(gl_WorkGroupID.x, gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y);
}
