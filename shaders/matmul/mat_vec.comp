#version 460
// y = x w^T + b for few rows of x, or the gated product activation(gate) * up of two weights.
//
// With several heads a row of x has `columns` values for each head, and the outputs of a workgroup belong to one head.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include "input.glsl"
#include "product.glsl"
#include "mat_vec.glsl"

layout(constant_id = 16) const uint HEADS = 1;         // of x; the outputs are divided among them
layout(constant_id = 17) const bool GATED = false;     // two weights (gate, up) with the same shape and format
layout(constant_id = 18) const uint ACTIVATION = 0;

// Outputs of each weight in a team.
const uint OWN_OUTPUTS = GATED ? OUTPUTS / 2 : OUTPUTS;

uint group_output = spread_group() * TEAMS * OWN_OUTPUTS;

uint first_output;
uint first_row;
uint rows;

// Indices past the last row or output repeat it; their results are not stored.
bool has_row(uint r) {
    return true;
}

vec4 input_quad(uint r, uint column) {
    uint head = HEADS == 1 ? 0 : group_output / (outputs / HEADS);
    return load_input(x, columns, min(first_row + r, rows - 1) * HEADS + head, column);
}

Matrix matrix_of(uint o) {
    if (GATED && o >= OWN_OUTPUTS) return second;
    return weight;
}

uint64_t run_of(uint o, uint index) {
    return uint64_t(min(first_output + o % OWN_OUTPUTS, outputs - 1)) * ((columns + 31) / 32) + index;
}

void main() {
    first_output = group_output + team * OWN_OUTPUTS;
    first_row = gl_WorkGroupID.y * ROWS;
    if (group_output >= outputs) return;
    uint runs = (columns + 31) / 32;
    load_first(runs); // before the number of rows is known
    rows = count_rows(step, row_kind);
    if (first_row >= rows) return;
    form_results(runs);
    for (uint i = lane; i < ROWS * OWN_OUTPUTS; i += LANES) {
        uint row = first_row + i / OWN_OUTPUTS;
        uint output_row = first_output + i % OWN_OUTPUTS;
        if (row >= rows || output_row >= outputs) continue;
        uint index = i / OWN_OUTPUTS * OUTPUTS + i % OWN_OUTPUTS;
        float result = biased(result_of(index), output_row);
        if (GATED) {
            float up = result_of(index + OUTPUTS - OWN_OUTPUTS);
            if (HAS_SECOND_BIAS) up += second_bias.at[output_row];
            result = activate(ACTIVATION, result, up);
        }
        store_result(row, output_row, result);
    }
}
