#version 460
// y = x w^T + b for few rows of x: a workgroup forms some outputs of some rows, so that the rows share what is unpacked of
// the weights.
//
// Invocation l takes the runs l, l + WORKGROUP_SIZE, ...; its sums are added in a tree. So a result's bits do not depend on
// the other rows, nor on how many rows or outputs a workgroup has.
//
// With several heads a row of x is a row of `columns` for each head.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint ROWS = 1;
layout(constant_id = 2) const uint OUTPUTS = 4;
layout(constant_id = 16) const uint HEADS = 1;         // of x, each with its own share of the outputs

shared float sums[ROWS * OUTPUTS][WORKGROUP_SIZE];

// The share of one run in a result.
float multiply(Run run, uint row, uint column, float sum) {
    vec4 products[2] = vec4[2](vec4(0.0), vec4(0.0));
    vec4 inputs[2] = vec4[2](vec4(0.0), vec4(0.0));
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        vec4 quad = load_input(x, columns, row, column + 4 * q);
        products[group_of(q)] = fma(run.codes[q], quad, products[group_of(q)]);
        if (MINIMUM) inputs[group_of(q)] += quad;
    }
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        sum = fma(run.scale[g], (products[g].x + products[g].y) + (products[g].z + products[g].w), sum);
        if (MINIMUM) sum = fma(run.minimum[g], (inputs[g].x + inputs[g].y) + (inputs[g].z + inputs[g].w), sum);
    }
    return sum;
}

void main() {
    uint first_output = spread_group() * OUTPUTS;
    uint first_row = gl_WorkGroupID.y * ROWS;
    uint rows = count_rows(step, row_kind);
    if (first_row >= rows || first_output >= outputs) return;
    uint runs = (columns + 31) / 32;
    uint lane = gl_LocalInvocationID.x;

    float partial[ROWS * OUTPUTS];
    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) partial[i] = 0.0;
    for (uint index = lane; index < runs; index += WORKGROUP_SIZE) {
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
            uint output_row = min(first_output + o, outputs - 1);
            Run run = load_run(weight, uint64_t(output_row) * runs + index);
            uint head = HEADS == 1 ? 0 : output_row / (outputs / HEADS);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                uint row = min(first_row + r, rows - 1) * HEADS + head;
                partial[r * OUTPUTS + o] = multiply(run, row, index * 32, partial[r * OUTPUTS + o]);
            }
        }
    }

    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) sums[i][lane] = partial[i];
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) {
            [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) sums[i][lane] += sums[i][lane + stride];
        }
        barrier();
    }
    for (uint i = lane; i < ROWS * OUTPUTS; i += WORKGROUP_SIZE) {
        uint row = first_row + i / OUTPUTS;
        uint output_row = first_output + i % OUTPUTS;
        if (row >= rows || output_row >= outputs) continue;
        store_result(row, output_row, sums[i][0]);
    }
}
