#version 460
// y = x w^T + b for many rows of x, with cooperative matrices.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "weight_halves.glsl"
#include "product.glsl"
#include "cooperative.glsl"

uvec2 first = tile_index() * uvec2(TILE_ROWS, TILE_OUTPUTS);
uint runs = (columns + 31) / 32;
uint rows;

uint64_t input_run(uint r, uint run) {
    return run_of_halves(x, min(first.x + r, rows - 1), run, runs);
}

Matrix matrix_of(uint o) {
    return weight;
}

uint64_t weight_run(uint o, uint run) {
    return uint64_t(min(first.y + o, outputs - 1)) * runs + run;
}

void store_of_tile(uint r, uint o, float result, float second) {
    uint row = first.x + r;
    uint output_row = first.y + o;
    if (row >= rows || output_row >= outputs) return;
    float divisor = divisor_of_halves(x, row, runs).at[0];
    store_result(row, output_row, biased(result * divisor, output_row));
}

void main() {
    rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    compute_tile(runs, false);
}
