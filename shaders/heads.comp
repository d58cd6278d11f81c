#version 460
// Copies a part of every head of a row to a part of every head of another: what `SplitHeads` and `JoinHeads` are made of.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Step step;
    uint row_kind;
    uint heads;
    uint length;      // of the part
    uint x_head;      // values of a head of x
    uint x_start;     // where the part begins in it
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
