#version 460
// The first product of a low-rank change, `h = A x`: a workgroup computes TILE values of a row. Each invocation adds every
// WORKGROUP_SIZE-th column, and the sums of all invocations are added in a tree, so that the bits of a row do not depend on
// the other rows.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include "change.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

const uint TILE = 4;

layout(push_constant, scalar) uniform Push {
    uint64_t slots;
    Floats x;          // [rows, columns]
    Floats h;          // [rows, max_rank]
    Step step;
    uint row_kind;
    uint slot_bytes;
    uint columns;
    uint max_rank;
};

shared vec4 lanes[WORKGROUP_SIZE];

void main() {
    uint row = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * TILE;
    if (row >= count_rows(step, row_kind)) return;
    Change change = change_of(step, row_of_step(step, row_kind, row), slots, slot_bytes, columns);
    if (first >= change.rank) return;
    // Rows of A past the last repeat it; their results are not stored.
    Floats a[TILE];
    [[unroll]] for (uint k = 0; k < TILE; k++) {
        a[k] = Floats(change.a + uint64_t(min(first + k, change.rank - 1)) * columns * 4);
    }
    uint lane = gl_LocalInvocationID.x;
    vec4 sum = vec4(0.0);
    for (uint column = lane; column < columns; column += WORKGROUP_SIZE) {
        float value = x.at[row * columns + column];
        vec4 of_rows = vec4(a[0].at[column], a[1].at[column], a[2].at[column], a[3].at[column]);
        sum = fma(of_rows, vec4(value), sum);
    }
    lanes[lane] = sum;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) lanes[lane] += lanes[lane + stride];
        barrier();
    }
    if (lane < min(TILE, change.rank - first)) h.at[row * max_rank + first + lane] = lanes[0][lane];
}
