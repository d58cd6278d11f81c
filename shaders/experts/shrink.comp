#version 460
// The first product of the changes of one matrix of all experts, for each route.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <lora/change.glsl>
#include <lora/shrink.glsl>
#include "routes.glsl"

// See `product.glsl`.
layout(constant_id = 25) const bool X_OF_ROUTES = false;
layout(constant_id = 26) const bool WEIGHTED = false;

layout(push_constant, scalar) uniform Push {
    uint64_t slots;
    uint64_t x;
    uint64_t h;            // [routes, max_rank]
    uint64_t routes;
    Step step;
    uint row_kind;
    uint first_row;
    uint most_rows;
    uint slot_bytes;
    uint change_bytes;     // of one expert
    uint columns;
    uint max_rank;
};

void main() {
    uint route = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * TILE;
    uint expert;
    if (route >= rows_of_chunk(step, row_kind, first_row, most_rows) * TOP_K) return;
    if (!find_expert(routes, route, expert)) return;
    uint row = row_of_step(step, row_kind, first_row + route / TOP_K);
    Change change = change_of(step, row, slots + uint64_t(expert) * change_bytes, slot_bytes, columns);
    if (first >= change.rank) return;
    Floats x_row = Floats(x + uint64_t(X_OF_ROUTES ? route : route / TOP_K) * columns * 4);
    float weight = WEIGHTED ? weight_of(routes, route) : 1.0;
    shrink_row(change, x_row, weight, Floats(h + uint64_t(route) * max_rank * 4), first, columns);
}
