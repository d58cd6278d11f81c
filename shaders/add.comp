#version 460
// Sums, value by value.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = a.at[i] + b.at[i];
}
