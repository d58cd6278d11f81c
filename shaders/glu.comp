#version 460
// Gated linear unit: an activation of a times b.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>
#include <gpu/activation.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = activate(variant, a.at[i], b.at[i]);
}
