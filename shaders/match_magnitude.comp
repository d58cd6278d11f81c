#version 460
// Streams scaled to the magnitude of another: one workgroup for each stream of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(push_constant, scalar) uniform Push {
    Floats model;     // [rows, width]
    Floats x;         // [rows, columns]
    Floats y;
    Step step;
    uint row_kind;
    uint columns;
    uint width;
    float least;
};

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint start = row * columns + gl_WorkGroupID.x * width;
    float wanted = 0.0;
    float found = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) {
        float a = model.at[row * width + i];
        float b = x.at[start + i];
        wanted = fma(a, a, wanted);
        found = fma(b, b, found);
    }
    wanted = sqrt(workgroup_sum(wanted) / float(width));
    found = sqrt(max(workgroup_sum(found) / float(width), least));
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) y.at[start + i] = x.at[start + i] * (wanted / found);
}
