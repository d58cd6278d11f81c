#version 460
// Linear combinations of the streams of each row: one invocation for each value of the output.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;         // [rows, from * width]
    Floats varied;    // [rows, to * from]
    Floats constant;  // [to, from]
    Floats y;         // [rows, to * width]
    Step step;
    uint row_kind;
    uint width;
    uint from;
    uint to;
    uint varies;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || column >= to * width) return;
    uint stream = column / width;
    uint within = column % width;
    float sum = 0.0;
    for (uint i = 0; i < from; i++) {
        float factor = constant.at[stream * from + i];
        if (varies != 0) factor += varied.at[(row * to + stream) * from + i];
        sum = fma(factor, x.at[(row * from + i) * width + within], sum);
    }
    y.at[row * to * width + column] = sum;
}
