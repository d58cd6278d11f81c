#version 460
// Layer norm: one workgroup for each group of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(constant_id = 1) const uint EACH = 1; // values of an invocation, which are in registers

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats weight;
    Floats bias;
    Floats y;
    Step step;
    uint row_kind;
    uint width;
    uint group_width;
    float epsilon;
};

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint start = row * width + gl_WorkGroupID.x * group_width;
    uint lane = gl_LocalInvocationID.x;
    float values[EACH];
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        values[e] = 0.0;
        if (i < group_width) values[e] = x.at[start + i];
    }
    float sum = 0.0;
    [[unroll]] for (uint e = 0; e < EACH; e++) sum += values[e];
    float mean = workgroup_sum(sum) / float(group_width);
    float squares = 0.0;
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        float distance = lane + e * WORKGROUP_SIZE < group_width ? values[e] - mean : 0.0;
        squares = fma(distance, distance, squares);
    }
    float scale = 1.0 / sqrt(workgroup_sum(squares) / float(group_width) + epsilon);
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        if (i < group_width) y.at[start + i] = fma((values[e] - mean) * scale, weight.at[i], bias.at[i]);
    }
}
