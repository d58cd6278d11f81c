#version 460
// The second product of a low-rank change, added to the output of the projection: `z = y + scale B h`, or y for a row without
// a change. An invocation computes one value and adds by ascending rank. For an embedding, h is the column of A of the row's
// token.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include "change.glsl"

layout(constant_id = 1) const bool OF_TOKENS = false;

layout(push_constant, scalar) uniform Push {
    uint64_t slots;
    Floats y;          // [rows, outputs]
    Floats h;          // [rows, max_rank]
    Floats z;          // [rows, outputs]
    Step step;
    uint row_kind;
    uint slot_bytes;
    uint columns;
    uint max_rank;
    uint outputs;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint o = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind) || o >= outputs) return;
    uint row_there = row_of_step(step, row_kind, row);
    Change change = change_of(step, row_there, slots, slot_bytes, columns);
    float value = y.at[row * outputs + o];
    if (change.rank > 0) {
        float sum = 0.0;
        for (uint k = 0; k < change.rank; k++) {
            float value = OF_TOKENS ? Floats(change.a).at[k * columns + step.tokens.at[row_there]] : h.at[row * max_rank + k];
            sum = fma(b_value(change, o, k), value, sum);
        }
        value = fma(sum, change.scale, value);
    }
    z.at[row * outputs + o] = value;
}
