#version 460
// Products of the routes of a large block with their expert, with cooperative matrices. x is in float16, as written by
// `matmul/halves.comp`.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include <matmul/input.glsl>
#include <matmul/weight_halves.glsl>
#include <matmul/cooperative.glsl>
#include "routes.glsl"
#include "blocks.glsl"
#include "product.glsl"

// Outputs of each matrix in a tile.
const uint OWN_OUTPUTS = TILE_OUTPUTS / MATRICES;

shared uint own_routes[TILE_ROWS];

uint first_output;
uint slot;
uint n_routes;

// The row of x of a route.
uint input_row(uint r) {
    uint route = own_routes[min(r, TILE_ROWS - 1)];
    return X_OF_ROUTES ? route : route / TOP_K;
}

uint64_t input_run(uint r, uint run) {
    return run_of_halves(x, input_row(r), run, RUNS_OF_ROW);
}

Matrix matrix_of(uint o) {
    if (o < OWN_OUTPUTS) return matrix;
    return second;
}

uint64_t weight_run(uint o, uint run) {
    uint output_row = first_output + o % OWN_OUTPUTS;
    uint row = o < OWN_OUTPUTS ? tensor_row(slot, output_row) : second_row(slot, output_row);
    return uint64_t(row) * RUNS_OF_ROW + run;
}

void store_of_tile(uint r, uint o, float result, float second_result) {
    uint output_row = first_output + o;
    if (r >= n_routes || output_row >= EXPERT_OUTPUTS) return;
    float divisor = divisor_of_halves(x, input_row(r), RUNS_OF_ROW).at[0];
    store_result(slot, own_routes[r], output_row, result * divisor, second_result * divisor);
}

void main() {
    first_output = spread_group() * OWN_OUTPUTS;
    if (first_output >= EXPERT_OUTPUTS || gl_WorkGroupID.y >= Words(blocks).at[0]) return;
    uint64_t block = find_block(blocks, gl_WorkGroupID.y, TILE_ROWS);
    uvec4 head = WordQuads(block).at[0];
    n_routes = head.y;
    // Indices past the last route repeat the last route; their results are not stored.
    for (uint r = gl_LocalInvocationID.x; r < TILE_ROWS; r += WORKGROUP_SIZE) {
        own_routes[r] = Words(block).at[4 + min(r, n_routes - 1)];
    }
    barrier();
    slot = slot_of(routes, own_routes[0], head.x);
    compute_tile(RUNS_OF_ROW, MATRICES == 2);
}
