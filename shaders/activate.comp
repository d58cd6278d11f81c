#version 460
// An activation without a gate: see `Pointwise`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>
#include <gpu/activation.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    float x = a.at[i];
    y.at[i] = variant == 100 ? max(x, 0.0) * max(x, 0.0) : activate(variant, x, 1.0);
}
