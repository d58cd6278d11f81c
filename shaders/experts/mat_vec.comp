#version 460
// Products of the routes of a small block, or of a single route, with their expert.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include <matmul/input.glsl>
#include <matmul/mat_vec.glsl>
#include "routes.glsl"
#include "blocks.glsl"
#include "product.glsl"

// Outputs of each matrix in a team.
const uint OWN_OUTPUTS = OUTPUTS / MATRICES;

uint first_output;
uint slot;
uint n_routes;
uint own_routes[ROWS];

bool has_row(uint r) {
    return ROWS == 1 || r < n_routes;
}

vec4 input_quad(uint r, uint column) {
    return load_routed(own_routes[r], column);
}

Matrix matrix_of(uint o) {
    if (o < OWN_OUTPUTS) return matrix;
    return second;
}

uint64_t run_of(uint o, uint index) {
    uint output_row = first_output + o % OWN_OUTPUTS;
    uint row = o < OWN_OUTPUTS ? tensor_row(slot, output_row) : second_row(slot, output_row);
    return uint64_t(row) * RUNS_OF_ROW + index;
}

// Finds the routes of this workgroup; returns `false` if it has none.
bool find_routes() {
    uint group = gl_WorkGroupID.y;
    if (ROWS == 1) {
        n_routes = 1;
        own_routes[0] = group;
        uint expert;
        if (group / TOP_K >= count_rows(step, row_kind) || !find_expert(routes, group, expert)) return false;
        slot = slot_of(routes, group, expert);
        return true;
    }
    if (group >= Words(blocks).at[0]) return false;
    uint64_t block = find_block(blocks, group, ROWS);
    uvec4 head = WordQuads(block).at[0];
    n_routes = head.y;
    [[unroll]] for (uint r = 0; r < ROWS; r++) own_routes[r] = Words(block).at[4 + min(r, n_routes - 1)];
    slot = slot_of(routes, own_routes[0], head.x);
    return true;
}

void main() {
    uint group_output = spread_group() * TEAMS * OWN_OUTPUTS;
    first_output = group_output + team * OWN_OUTPUTS;
    if (group_output >= EXPERT_OUTPUTS || !find_routes()) return;
    load_first(RUNS_OF_ROW);
    form_results(RUNS_OF_ROW);
    for (uint i = lane; i < ROWS * OWN_OUTPUTS; i += LANES) {
        uint r = i / OWN_OUTPUTS;
        uint o = i % OWN_OUTPUTS;
        if (r >= n_routes || first_output + o >= EXPERT_OUTPUTS) continue;
        float second_result = result_of(r * OUTPUTS + o + OUTPUTS - OWN_OUTPUTS);
        uint route = ROWS == 1 ? own_routes[0] : Words(find_block(blocks, gl_WorkGroupID.y, ROWS)).at[4 + r];
        store_result(slot, route, first_output + o, result_of(r * OUTPUTS + o), second_result);
    }
}
