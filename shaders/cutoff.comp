#version 460
// What exceeds a cutoff: one workgroup for each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint start = row * width;
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) sum += a.at[start + i];
    float mean = workgroup_sum(sum) / float(width);
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) {
        float distance = a.at[start + i] - mean;
        squares = fma(distance, distance, squares);
    }
    float cutoff = mean + parameter * sqrt(workgroup_sum(squares) / float(width));
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) y.at[start + i] = max(a.at[start + i] - cutoff, 0.0);
}
