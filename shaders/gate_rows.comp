#version 460
// Each row of a times the logistic function of its gate in b.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = a.at[i] / (1.0 + exp(-b.at[gl_WorkGroupID.y]));
}
