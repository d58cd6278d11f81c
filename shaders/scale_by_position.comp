#version 460
// Each row times a factor that depends on its position: see `ScaleByPosition`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

layout(constant_id = 1) const uint FIRST = 1; // the number of the first position

void main() {
    uint i;
    if (!find_value(i)) return;
    uint steps = (step.positions.at[gl_WorkGroupID.y] + FIRST) / variant;
    y.at[i] = a.at[i] * (1.0 + parameter * log(1.0 + float(steps)));
}
