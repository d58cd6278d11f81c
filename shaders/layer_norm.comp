#version 460
// Layer norm: one workgroup for each group of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

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
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < group_width; i += WORKGROUP_SIZE) sum += x.at[start + i];
    float mean = workgroup_sum(sum) / float(group_width);
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < group_width; i += WORKGROUP_SIZE) {
        float distance = x.at[start + i] - mean;
        squares = fma(distance, distance, squares);
    }
    float scale = 1.0 / sqrt(workgroup_sum(squares) / float(group_width) + epsilon);
    for (uint i = gl_LocalInvocationID.x; i < group_width; i += WORKGROUP_SIZE) {
        y.at[start + i] = fma((x.at[start + i] - mean) * scale, weight.at[i], bias.at[i]);
    }
}
