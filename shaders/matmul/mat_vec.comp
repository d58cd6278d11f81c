#version 460
// y = x w^T + b for few rows of x.
//
// With several heads a row of x is one of `columns` for each head, and a workgroup has outputs of one of them alone.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"
#include "mat_vec.glsl"

layout(constant_id = 16) const uint HEADS = 1;         // of x, each with its own share of the outputs

uint first_output;
uint first_row;
uint rows;

// Rows and outputs beyond the last stand for the last; their results are not stored.
bool has_row(uint r) {
    return true;
}

vec4 input_quad(uint r, uint column) {
    uint head = HEADS == 1 ? 0 : first_output / (outputs / HEADS);
    return load_input(x, columns, min(first_row + r, rows - 1) * HEADS + head, column);
}

Run weight_run(uint o, uint index) {
    return load_run(weight, uint64_t(min(first_output + o, outputs - 1)) * ((columns + 31) / 32) + index);
}

void main() {
    first_output = spread_group() * OUTPUTS;
    first_row = gl_WorkGroupID.y * ROWS;
    rows = count_rows(step, row_kind);
    if (first_row >= rows || first_output >= outputs) return;
    form_results((columns + 31) / 32);
    for (uint i = gl_LocalInvocationID.x; i < ROWS * OUTPUTS; i += WORKGROUP_SIZE) {
        uint row = first_row + i / OUTPUTS;
        uint output_row = first_output + i % OUTPUTS;
        if (row < rows && output_row < outputs) store_result(row, output_row, sums[i][0]);
    }
}
