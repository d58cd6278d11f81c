#version 460
// The first product of the changes of a projection.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include "change.glsl"
#include "shrink.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t slots;
    uint64_t x;        // [rows, columns]
    uint64_t h;        // [rows, max_rank]
    Step step;
    uint row_kind;
    uint slot_bytes;
    uint columns;
    uint max_rank;
};

void main() {
    uint row = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * TILE;
    if (row >= count_rows(step, row_kind)) return;
    Change change = change_of(step, row_of_step(step, row_kind, row), slots, slot_bytes, columns);
    if (first >= change.rank) return;
    Floats x_row = Floats(x + uint64_t(row) * columns * 4);
    shrink_row(change, x_row, 1.0, Floats(h + uint64_t(row) * max_rank * 4), first, columns);
}
