#version 460
// Sums the weights of the kept tokens of each tile, one workgroup per tile.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"
#include "kept.glsl"

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind) || params.of[row].mode == NOTHING) return;
    State state = states.of[row];
    if (state.has_result != 0) return;
    Floats values = row_logits(row);
    float inverse_temperature = params.of[row].inverse_temperature;
    uint start = gl_WorkGroupID.x * tile;
    uint end = min(start + tile, vocab_size);
    uint64_t sum = 0;
    for (uint token = start + gl_LocalInvocationID.x; token < end; token += WORKGROUP_SIZE) {
        sum += kept_weight(values.at[token], token, state, inverse_temperature);
    }
    sum = workgroup_sum(sum);
    if (gl_LocalInvocationID.x == 0) sums.at[row * tiles + gl_WorkGroupID.x] = sum;
}
