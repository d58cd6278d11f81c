#version 460
// Each row times a factor that depends on its position: see `ScaleByPosition`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    uint steps = (step.positions.at[gl_WorkGroupID.y] + 1) / variant;
    y.at[i] = a.at[i] * (1.0 + parameter * log(1.0 + float(steps)));
}
