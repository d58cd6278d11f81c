#version 460
// Copies a range of every head of x to a range of every head of y: the shader of `SplitHeads` and `JoinHeads`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Step step;
    uint row_kind;
    uint heads;
    uint length;      // of the range
    uint x_head;      // values of a head of x
    uint x_start;     // the start of the range in it
    uint y_head;
    uint y_start;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || column >= heads * length) return;
    uint head = row * heads + column / length;
    uint within = column % length;
    y.at[head * y_head + y_start + within] = x.at[head * x_head + x_start + within];
}
