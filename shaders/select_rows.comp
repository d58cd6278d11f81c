#version 460
// Copies the rows whose logits or hidden values are requested.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Step step;
    uint width;
    uint kind;             // of the copied rows, that of `RowCount`
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, kind) || column >= width) return;
    uint source = kind == 2 ? step.hidden_selection.at[row] : step.selection.at[row];
    y.at[row * width + column] = x.at[source * width + column];
}
