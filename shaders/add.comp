#version 460
// The sum of two values.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = a.at[i] + b.at[i];
}
