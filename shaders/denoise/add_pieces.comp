#version 460
// The mean of each row as the sum of its pieces in their order, and the sampled token among the row's statistics: one
// invocation for each column of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats means;          // [row, piece, runs * 32]
    Floats sampled;        // [row]
    Floats y;
    Floats statistics;     // [row, 3]
    Step step;
    uint row_kind;
    uint columns;
    uint runs;
    uint pieces;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint column = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || column >= columns) return;
    if (column == 0) statistics.at[row * 3 + 1] = sampled.at[row];
    Floats pieces_of_row = Floats(uint64_t(means) + uint64_t(row) * pieces * runs * 128);
    float sum = 0.0;
    for (uint piece = 0; piece < pieces; piece++) sum += pieces_of_row.at[piece * runs * 32 + column];
    y.at[row * columns + column] = sum;
}
