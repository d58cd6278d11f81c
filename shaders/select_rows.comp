#version 460
// Copies the rows whose logits are requested.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Step step;
    uint width;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= step.selected || column >= width) return;
    y.at[row * width + column] = x.at[step.selection.at[row] * width + column];
}
