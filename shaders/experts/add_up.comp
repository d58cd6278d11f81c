#version 460
// The weighted sum of the results of a row's routes, in the order of the routes.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include "routes.glsl"

layout(constant_id = 26) const bool WEIGHTED = true;

layout(push_constant, scalar) uniform Push {
    uint64_t results;  // [routes, width]
    uint64_t routes;
    uint64_t y;        // [rows, width]
    Step step;
    uint row_kind;
    uint first_row;
    uint most_rows;
    uint width;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= rows_of_chunk(step, row_kind, first_row, most_rows) || column >= width) return;
    float sum = 0.0;
    for (uint route = row * TOP_K; route < (row + 1) * TOP_K; route++) {
        uint expert;
        if (!find_expert(routes, route, expert)) continue;
        float result = Floats(results + uint64_t(route) * width * 4).at[column];
        sum = fma(WEIGHTED ? weight_of(routes, route) : 1.0, result, sum);
    }
    Floats(y + uint64_t(row) * width * 4).at[column] = sum;
}
