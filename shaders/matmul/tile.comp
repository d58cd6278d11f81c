#version 460
// y = x w^T + b for many rows of x, in float32: a workgroup forms a tile of y.
//
// It goes through the columns a run at a time: its rows of x and its decoded weights come to shared memory, so that each is
// read from the device, and decoded, once for the whole tile. An invocation keeps the sums of LANE_ROWS x LANE_OUTPUTS results
// in registers, which lie a whole turn of invocations apart.
//
// Rows in shared memory are 9 quads apart, and not 8: eight invocations that read the same quad of neighbouring rows meet
// different banks, and so do eight that write. For each 16 bytes that an invocation reads there it does
// 4 LANE_ROWS LANE_OUTPUTS / (LANE_ROWS + LANE_OUTPUTS) multiply-adds: 16 with 8 x 8.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint TILE_ROWS = 32;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;
layout(constant_id = 4) const uint LANE_ROWS = 4;
layout(constant_id = 5) const uint LANE_OUTPUTS = 4;

const uint LANES_ACROSS = TILE_OUTPUTS / LANE_OUTPUTS;
const uint LANES_DOWN = TILE_ROWS / LANE_ROWS;
const uint STRIDE = QUADS + 1;

shared vec4 inputs[TILE_ROWS * STRIDE];
shared vec4 weights[TILE_OUTPUTS * STRIDE];

// Rows and outputs beyond the last stand for the last; their results are not stored.
void stage(uvec2 first, uint rows, uint run_index, uint runs) {
    uint lane = gl_LocalInvocationID.x;
    for (uint i = lane; i < TILE_ROWS * QUADS; i += WORKGROUP_SIZE) {
        uint row = min(first.x + i / QUADS, rows - 1);
        inputs[i / QUADS * STRIDE + i % QUADS] = load_input(x, columns, row, run_index * 32 + i % QUADS * 4);
    }
    for (uint i = lane; i < TILE_OUTPUTS; i += WORKGROUP_SIZE) {
        uint output_row = min(first.y + i, outputs - 1);
        Run run = load_run(weight, uint64_t(output_row) * runs + run_index);
        [[unroll]] for (uint q = 0; q < QUADS; q++) weights[i * STRIDE + q] = values(run, q);
    }
}

void main() {
    uvec2 first = first_of_tile(TILE_ROWS, TILE_OUTPUTS);
    uint rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    uint runs = (columns + 31) / 32;
    uint across = gl_LocalInvocationID.x % LANES_ACROSS;
    uint down = gl_LocalInvocationID.x / LANES_ACROSS;

    float sums[LANE_ROWS * LANE_OUTPUTS];
    [[unroll]] for (uint i = 0; i < LANE_ROWS * LANE_OUTPUTS; i++) sums[i] = 0.0;
    for (uint run_index = 0; run_index < runs; run_index++) {
        stage(first, rows, run_index, runs);
        barrier();
        [[dont_unroll]] for (uint q = 0; q < QUADS; q++) {
            vec4 of_outputs[LANE_OUTPUTS];
            [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) of_outputs[o] = weights[(across + o * LANES_ACROSS) * STRIDE + q];
            [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
                vec4 of_row = inputs[(down + r * LANES_DOWN) * STRIDE + q];
                [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) {
                    uint i = r * LANE_OUTPUTS + o;
                    [[unroll]] for (uint c = 0; c < 4; c++) sums[i] = fma(of_row[c], of_outputs[o][c], sums[i]);
                }
            }
        }
        barrier();
    }

    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) {
            uint row = first.x + down + r * LANES_DOWN;
            uint output_row = first.y + across + o * LANES_ACROSS;
            if (row < rows && output_row < outputs) store_result(row, output_row, sums[r * LANE_OUTPUTS + o]);
        }
    }
}
