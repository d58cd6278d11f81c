#version 460
// Rows of b where they are given, else of a: see `GivenRows`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    uint given = gl_WorkGroupID.y * (width + 1);
    y.at[i] = b.at[given] != 0.0 ? b.at[given + 1 + gl_GlobalInvocationID.x] : a.at[i];
}
