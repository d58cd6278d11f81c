#version 460
// Soft cap: limits values smoothly to the parameter.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>
#include <gpu/softcap.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = softcap(a.at[i], parameter);
}
