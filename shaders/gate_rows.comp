#version 460
// Runs of a, each with a gate in b.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>
#include <gpu/activation.glsl>

// Gates in a row.
layout(constant_id = 1) const uint GATES = 1;

void main() {
    uint i;
    if (!find_value(i)) return;
    uint run = gl_GlobalInvocationID.x / (width / GATES);
    y.at[i] = activate(variant, b.at[gl_WorkGroupID.y * GATES + run], a.at[i]);
}
