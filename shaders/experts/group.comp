#version 460
// Puts routes in blocks by their expert (`blocks.glsl`). One workgroup does it: it counts the routes to each expert, adds up how
// many blocks come before, and gives each route its place.
//
// In what order routes come to places is left to chance. It matters to no result: each is formed by itself.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include "routes.glsl"
#include "blocks.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint BLOCK_ROUTES = 8;

layout(push_constant, scalar) uniform Push {
    uint64_t routes;
    uint64_t blocks;
    Step step;
    uint row_kind;
    uint first_row;
    uint most_rows;
};

// The experts whose blocks an invocation counts.
const uint EACH = (N_EXPERTS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

shared uint counts[N_EXPERTS];
shared uint first_blocks[N_EXPERTS];
shared uint sums[WORKGROUP_SIZE];

// The sum of the values of this invocation and those before it. All must come here.
uint sum_so_far(uint value) {
    uint lane = gl_LocalInvocationID.x;
    sums[lane] = value;
    barrier();
    for (uint distance = 1; distance < WORKGROUP_SIZE; distance *= 2) {
        uint other = lane >= distance ? sums[lane - distance] : 0;
        barrier();
        sums[lane] += other;
        barrier();
    }
    return sums[lane];
}

uint blocks_of(uint expert) {
    return (counts[expert] + BLOCK_ROUTES - 1) / BLOCK_ROUTES;
}

// Gives each expert its blocks, and begins them.
void begin_blocks() {
    uint lane = gl_LocalInvocationID.x;
    uint first = min(lane * EACH, N_EXPERTS);
    uint end = min(first + EACH, N_EXPERTS);
    uint own = 0;
    for (uint expert = first; expert < end; expert++) own += blocks_of(expert);
    uint next = sum_so_far(own) - own;
    if (lane == WORKGROUP_SIZE - 1) WordQuads(blocks).at[0] = uvec4(next + own, 0, 0, 0);
    for (uint expert = first; expert < end; expert++) {
        first_blocks[expert] = next;
        for (uint left = counts[expert]; left > 0; left -= min(left, BLOCK_ROUTES)) {
            WordQuads(find_block(blocks, next, BLOCK_ROUTES)).at[0] = uvec4(expert, min(left, BLOCK_ROUTES), 0, 0);
            next++;
        }
    }
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint n_routes = rows_of_part(step, row_kind, first_row, most_rows) * TOP_K;
    for (uint expert = lane; expert < N_EXPERTS; expert += WORKGROUP_SIZE) counts[expert] = 0;
    barrier();
    uint expert;
    for (uint route = lane; route < n_routes; route += WORKGROUP_SIZE) {
        if (find_expert(routes, route, expert)) atomicAdd(counts[expert], 1);
    }
    barrier();
    begin_blocks();
    barrier();
    // From here on how many of an expert's routes have their place.
    for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) counts[e] = 0;
    barrier();
    for (uint route = lane; route < n_routes; route += WORKGROUP_SIZE) {
        if (!find_expert(routes, route, expert)) continue;
        uint place = atomicAdd(counts[expert], 1);
        uint64_t block = find_block(blocks, first_blocks[expert] + place / BLOCK_ROUTES, BLOCK_ROUTES);
        Words(block).at[4 + place % BLOCK_ROUTES] = route;
    }
}
