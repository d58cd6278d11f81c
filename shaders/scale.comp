#version 460
// Each value times a factor.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (find_value(i)) y.at[i] = parameter * a.at[i];
}
