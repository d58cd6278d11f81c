#version 460
// Gates of residual streams by the products of two values of each: one workgroup for each stream of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(push_constant, scalar) uniform Push {
    Floats a;         // [rows, columns]
    Floats b;
    Floats y;         // [rows, streams]
    Step step;
    uint row_kind;
    uint columns;
    uint width;       // values of a stream
    float scale;      // of products
    float least;
};

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint start = row * columns + gl_WorkGroupID.x * width;
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) sum = fma(a.at[start + i], b.at[start + i], sum);
    float product = workgroup_sum(sum) * scale;
    if (gl_LocalInvocationID.x > 0) return;
    float root = product == 0.0 ? 0.0 : sign(product) * sqrt(max(abs(product), least));
    y.at[row * (columns / width) + gl_WorkGroupID.x] = 1.0 / (1.0 + exp(-root));
}
