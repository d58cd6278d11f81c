#version 460
// The second product of the changes of one matrix of all experts, added to its product. An invocation computes one value.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <lora/change.glsl>
#include "routes.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t slots;
    uint64_t y;            // [routes, outputs]
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
    uint outputs;
};

void main() {
    uint route = gl_WorkGroupID.y;
    uint o = gl_GlobalInvocationID.x;
    uint expert;
    if (route >= rows_of_chunk(step, row_kind, first_row, most_rows) * TOP_K || o >= outputs) return;
    if (!find_expert(routes, route, expert)) return;
    uint row = row_of_step(step, row_kind, first_row + route / TOP_K);
    Change change = change_of(step, row, slots + uint64_t(expert) * change_bytes, slot_bytes, columns);
    if (change.rank == 0) return;
    Floats of_route = Floats(h + uint64_t(route) * max_rank * 4);
    float sum = 0.0;
    for (uint k = 0; k < change.rank; k++) sum = fma(b_value(change, o, k), of_route.at[k], sum);
    Floats result = Floats(y + (uint64_t(route) * outputs + o) * 4);
    result.at[0] = fma(sum, change.scale, result.at[0]);
}
