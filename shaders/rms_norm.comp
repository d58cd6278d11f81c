#version 460
// Root-mean-square norm: one workgroup for each group of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(constant_id = 1) const bool ADDS = false; // normalises the sum of two values, and stores the sum too
layout(constant_id = 2) const uint EACH = 1;     // values of an invocation, which are in registers

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats added;
    Floats sum;
    Floats weight;
    Floats y;
    Step step;
    uint row_kind;
    uint width;
    uint group_width;
    uint weight_width;
    float epsilon;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint start = row * width + gl_WorkGroupID.x * group_width;
    uint of_weight = gl_WorkGroupID.x * group_width % weight_width;
    // Loaded before the number of rows is known: a value has memory for the most rows of its step.
    float values[EACH];
    float weights[EACH];
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        values[e] = 0.0;
        if (i >= group_width) continue;
        values[e] = ADDS ? x.at[start + i] + added.at[start + i] : x.at[start + i];
        weights[e] = weight.at[of_weight + i];
    }
    if (row >= count_rows(step, row_kind)) return;
    float squares = 0.0;
    [[unroll]] for (uint e = 0; e < EACH; e++) squares = fma(values[e], values[e], squares);
    float scale = 1.0 / sqrt(workgroup_sum(squares) / float(group_width) + epsilon);
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        if (i >= group_width) continue;
        if (ADDS) sum.at[start + i] = values[e];
        y.at[start + i] = values[e] * scale * weights[e];
    }
}
