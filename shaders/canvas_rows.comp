#version 460
// Rows of b for canvases and of a for all others, each with its factor: see `CanvasRows`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    bool is_canvas = step.sights.at[2 * step.sequences.at[gl_WorkGroupID.y]] == SIGHT_CANVAS;
    y.at[i] = is_canvas ? b.at[i] * uintBitsToFloat(variant) : a.at[i] * parameter;
}
