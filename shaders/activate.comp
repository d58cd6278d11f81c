#version 460
// An activation without a gate: see `Pointwise`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>
#include <gpu/activation.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = activate_alone(variant, a.at[i]);
}
