#version 460
// Limits values to a range around 0.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = clamp(a.at[i], -parameter, parameter);
}
