#version 460
// Groups routes into blocks by expert (`blocks.glsl`). A single workgroup counts the routes to each expert, computes
// the first block of each expert with a prefix sum, and writes each route to an entry of a block.
//
// The order of the routes of an expert is not deterministic. It does not affect results, since each is computed
// independently.

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

// The number of experts whose blocks an invocation counts.
const uint EACH = (N_EXPERTS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

shared uint counts[N_EXPERTS];
shared uint first_blocks[N_EXPERTS];
shared uint sums[WORKGROUP_SIZE];

// The inclusive prefix sum over the invocations. All invocations must call it.
uint prefix_sum(uint value) {
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

// Assigns blocks to each expert and writes their headers.
void write_headers() {
    uint lane = gl_LocalInvocationID.x;
    uint first = min(lane * EACH, N_EXPERTS);
    uint end = min(first + EACH, N_EXPERTS);
    uint own = 0;
    for (uint expert = first; expert < end; expert++) own += blocks_of(expert);
    uint next = prefix_sum(own) - own;
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
    uint n_routes = rows_of_chunk(step, row_kind, first_row, most_rows) * TOP_K;
    for (uint expert = lane; expert < N_EXPERTS; expert += WORKGROUP_SIZE) counts[expert] = 0;
    barrier();
    uint expert;
    for (uint route = lane; route < n_routes; route += WORKGROUP_SIZE) {
        if (find_expert(routes, route, expert)) atomicAdd(counts[expert], 1);
    }
    barrier();
    write_headers();
    barrier();
    // From now on `counts` is the number of routes of each expert that are written.
    for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) counts[e] = 0;
    barrier();
    for (uint route = lane; route < n_routes; route += WORKGROUP_SIZE) {
        if (!find_expert(routes, route, expert)) continue;
        uint entry = atomicAdd(counts[expert], 1);
        uint64_t block = find_block(blocks, first_blocks[expert] + entry / BLOCK_ROUTES, BLOCK_ROUTES);
        Words(block).at[4 + entry % BLOCK_ROUTES] = route;
    }
}
