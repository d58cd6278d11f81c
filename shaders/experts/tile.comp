#version 460
// Products of the routes of a large block with their expert, in float32.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include <matmul/input.glsl>
#include <matmul/tile.glsl>
#include "routes.glsl"
#include "blocks.glsl"
#include "product.glsl"

// Outputs of each matrix in a tile and in an invocation. An invocation has the same outputs of both matrices.
const uint OWN_OUTPUTS = TILE_OUTPUTS / MATRICES;
const uint LANE_OWN_OUTPUTS = LANE_OUTPUTS / MATRICES;

shared uint own_routes[TILE_ROWS];

uint first_output;
uint slot;

vec4 input_quad(uint r, uint column) {
    return load_routed(own_routes[r], column);
}

Run weight_run(uint o, uint index) {
    uint output_row = first_output + o % OWN_OUTPUTS;
    if (o < OWN_OUTPUTS) return load_weight(slot, output_row, index);
    return load_second(slot, output_row, index);
}

void main() {
    first_output = spread_group() * OWN_OUTPUTS;
    if (first_output >= EXPERT_OUTPUTS || gl_WorkGroupID.y >= Words(blocks).at[0]) return;
    uint64_t block = find_block(blocks, gl_WorkGroupID.y, TILE_ROWS);
    uvec4 head = WordQuads(block).at[0];
    uint n_routes = head.y;
    // Indices past the last route repeat the last route; their results are not stored.
    for (uint r = gl_LocalInvocationID.x; r < TILE_ROWS; r += WORKGROUP_SIZE) {
        own_routes[r] = Words(block).at[4 + min(r, n_routes - 1)];
    }
    barrier();
    slot = slot_of(routes, own_routes[0], head.x);
    float sums[LANE_RESULTS];
    form_tile(RUNS_OF_ROW, sums);
    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        [[unroll]] for (uint o = 0; o < LANE_OWN_OUTPUTS; o++) {
            uint output_row = first_output + tile_output(o);
            if (tile_row(r) >= n_routes || output_row >= EXPERT_OUTPUTS) continue;
            uint i = r * LANE_OUTPUTS + o;
            store_result(slot, own_routes[tile_row(r)], output_row, sums[i], sums[i + LANE_OUTPUTS - LANE_OWN_OUTPUTS]);
        }
    }
}
