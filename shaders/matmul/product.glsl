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

// Constants, since a driver may read from an address before it looks whether anybody asks for what is there.
layout(constant_id = 19) const bool HAS_BIAS = false;
layout(constant_id = 20) const bool HAS_SECOND_BIAS = false;

// A result with its bias.
float biased(float result, uint output_row) {
    if (HAS_BIAS) result += bias.at[output_row];
    return result;
}

void store_result(uint row, uint output_row, float result) {
    Floats(y + uint64_t(row) * outputs * 4).at[output_row] = result;
}

// Which tile this workgroup has, down and across. Rows come first: workgroups that run side by side share weights, which are
// the larger part of what is read.
uvec2 tile_index() {
    return uvec2(gl_WorkGroupID.x, gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y);
}
