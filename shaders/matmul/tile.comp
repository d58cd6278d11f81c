#version 460
// y = x w^T + b for many rows of x, in float32.
//
// With several heads a row of x has `columns` values for each head, and the outputs of a tile belong to one head.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"
#include "tile.glsl"

layout(constant_id = 16) const uint HEADS = 1; // of x; the outputs are divided among them

uvec2 first;
uint head;
uint end;  // of the outputs of the head
uint rows;

// Indices past the last row or output repeat it; their results are not stored.
vec4 input_quad(uint r, uint column) {
    return load_input(x, columns, min(first.x + r, rows - 1) * HEADS + head, column);
}

Run weight_run(uint o, uint index) {
    return load_run(weight, uint64_t(min(first.y + o, end - 1)) * ((columns + 31) / 32) + index);
}

void main() {
    uint of_head = outputs / HEADS;
    uvec2 tile = tile_index();
    uint tiles_of_head = (of_head + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    head = tile.y / tiles_of_head;
    end = (head + 1) * of_head;
    first = uvec2(tile.x * TILE_ROWS, head * of_head + tile.y % tiles_of_head * TILE_OUTPUTS);
    rows = count_rows(step, row_kind);
    if (first.x >= rows || head >= HEADS) return;
    float sums[LANE_RESULTS];
    form_tile((columns + 31) / 32, sums);
    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) {
            uint row = first.x + tile_row(r);
            uint output_row = first.y + tile_output(o);
            if (row >= rows || output_row >= end) continue;
            store_result(row, output_row, biased(sums[r * LANE_OUTPUTS + o], output_row));
        }
    }
}
