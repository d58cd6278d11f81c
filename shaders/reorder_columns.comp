#version 460
// The columns of a row in another order.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats order;     // [width], whole numbers
    Floats y;
    Step step;
    uint row_kind;
    uint width;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || column >= width) return;
    y.at[row * width + column] = x.at[row * width + uint(order.at[column])];
}
