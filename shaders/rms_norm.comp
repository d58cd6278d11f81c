#version 460
// Root-mean-square norm: one workgroup for each group of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(constant_id = 1) const bool ADDS = false; // normalises the sum of two values, and stores the sum too

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
    if (row >= count_rows(step, row_kind)) return;
    uint start = row * width + gl_WorkGroupID.x * group_width;
    uint of_weight = gl_WorkGroupID.x * group_width % weight_width;
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < group_width; i += WORKGROUP_SIZE) {
        float value = x.at[start + i];
        if (ADDS) {
            value += added.at[start + i];
            sum.at[start + i] = value;
        }
        squares = fma(value, value, squares);
    }
    float scale = 1.0 / sqrt(workgroup_sum(squares) / float(group_width) + epsilon);
    for (uint i = gl_LocalInvocationID.x; i < group_width; i += WORKGROUP_SIZE) {
        // The sum was stored by this invocation.
        float value = ADDS ? sum.at[start + i] : x.at[start + i];
        y.at[start + i] = value * scale * weight.at[of_weight + i];
    }
}
