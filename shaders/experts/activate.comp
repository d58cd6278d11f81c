#version 460
// The activation of the hidden layer of each route, where the products are stored before it.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include "routes.glsl"

layout(constant_id = 27) const uint ACTIVATION = 0;
layout(constant_id = 37) const bool GATED = true;

layout(push_constant, scalar) uniform Push {
    uint64_t hidden;       // [routes, width]: the product of gate, or of up where there is no gate
    uint64_t up;           // [routes, width]
    Step step;
    uint row_kind;
    uint first_row;
    uint most_rows;
    uint width;
};

void main() {
    uint route = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (route >= rows_of_chunk(step, row_kind, first_row, most_rows) * TOP_K || column >= width) return;
    uint64_t start = (uint64_t(route) * width + column) * 4;
    Floats stored = Floats(hidden + start);
    if (GATED) stored.at[0] = activate(ACTIVATION, stored.at[0], Floats(up + start).at[0]);
    else stored.at[0] = activate_alone(ACTIVATION, stored.at[0]);
}
