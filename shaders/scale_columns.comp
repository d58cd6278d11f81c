#version 460
// Each column times its own factor.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats factors;   // [width]
    Floats y;
    Step step;
    uint row_kind;
    uint width;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || column >= width) return;
    y.at[row * width + column] = factors.at[column] * x.at[row * width + column];
}
