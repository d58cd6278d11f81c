// The interface of the kernels for y = x w^T + b.

layout(push_constant, scalar) uniform Push {
    Matrix weight;
    Matrix second;        // of a gated product, if GATED
    uint64_t x;
    Floats bias;          // [outputs], if HAS_BIAS
    Floats second_bias;
    uint64_t y;
    Step step;
    uint row_kind;
    uint columns;
    uint outputs;
};

// These are constants because a driver can read from an address speculatively, before the condition is evaluated.
layout(constant_id = 19) const bool HAS_BIAS = false;
layout(constant_id = 20) const bool HAS_SECOND_BIAS = false;

// Adds the bias to a result.
float biased(float result, uint output_row) {
    if (HAS_BIAS) result += bias.at[output_row];
    return result;
}

void store_result(uint row, uint output_row, float result) {
    Floats(y + uint64_t(row) * outputs * 4).at[output_row] = result;
}

// The tile of this workgroup, down and across. Rows vary fastest, so that workgroups that run at the same time share
// weights, which are most of the data.
uvec2 tile_index() {
    return uvec2(gl_WorkGroupID.x, gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y);
}
