#version 460
// Rows of an embedding table, scaled: one invocation for each run of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>

layout(push_constant, scalar) uniform Push {
    Matrix table;
    FloatQuads y;
    Step step;
    uint columns;
    float scale;
    uint kind;             // the index of a row's entry: 0, 3 its token, 1 its position, 2 whether it is of a second text
    uint entries;          // with kinds 2 and 3, indices from this one on have entry 0
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint runs = (columns + 31) / 32;
    uint run_index = gl_GlobalInvocationID.x;
    if (row >= step.rows || run_index >= runs) return;
    uint entry = kind == 0 || kind == 3 ? step.tokens.at[row] : step.positions.at[row];
    if (kind == 2) entry = entry >= step.second_texts.at[step.sequences.at[row]] ? 1 : 0;
    if (kind >= 2 && entry >= entries) entry = 0;
    Run run = load_run(table, uint64_t(entry) * runs + run_index);
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        vec4 value = values(run, q) * scale;
        uint column = run_index * 32 + q * 4;
        if (column + 4 <= columns && columns % 4 == 0) {
            y.at[(row * columns + column) / 4] = value;
        } else {
            Floats single = Floats(uint64_t(y));
            for (uint i = 0; i < 4 && column + i < columns; i++) single.at[row * columns + column + i] = value[i];
        }
    }
}
