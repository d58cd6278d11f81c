#version 460
// Limits values to a range: the least value has the bits of `variant`, the largest is `parameter`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = clamp(a.at[i], uintBitsToFloat(variant), parameter);
}
