#version 460
// Finds the token that ranks first in each tile, one workgroup per tile.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind) || params.of[row].mode == NOTHING) return;
    Floats values = row_logits(row);
    uint start = gl_WorkGroupID.x * tile;
    uint end = min(start + tile, vocab_size);
    uint64_t first = 0;
    for (uint token = start + gl_LocalInvocationID.x; token < end; token += WORKGROUP_SIZE) {
        first = max(first, rank(values.at[token], token));
    }
    first = workgroup_max(first);
    if (gl_LocalInvocationID.x == 0) best.at[row * tiles + gl_WorkGroupID.x] = first;
}
