#version 460
// y = x w^T + b for many rows of x, in float32.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"
#include "tile.glsl"

uvec2 first;
uint rows;

// Rows and outputs beyond the last stand for the last; their results are not stored.
vec4 input_quad(uint r, uint column) {
    return load_input(x, columns, min(first.x + r, rows - 1), column);
}

Run weight_run(uint o, uint index) {
    return load_run(weight, uint64_t(min(first.y + o, outputs - 1)) * ((columns + 31) / 32) + index);
}

void main() {
    first = first_of_tile(TILE_ROWS, TILE_OUTPUTS);
    rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    float sums[LANE_RESULTS];
    form_tile((columns + 31) / 32, sums);
    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) {
            uint row = first.x + tile_row(r);
            uint output_row = first.y + tile_output(o);
            if (row >= rows || output_row >= outputs) continue;
            store_result(row, output_row, biased(bias, output_row, sums[r * LANE_OUTPUTS + o]));
        }
    }
}
