#version 460
// Rounds rows of x to float16, once for all tiles that read them.
//
// The range of float16 ends at 65504, which activations can exceed, and values below 2^-14 lose bits. So each row is
// divided by the power of two that scales its largest magnitude to 2^14 .. 2^15, which is exact, and the results are
// multiplied by it. Values are rounded to 11 bits; values below the largest magnitude times 2^-29 lose more. Infinities
// and NaN are preserved.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>
#include "halves.glsl"
#include "input.glsl"

layout(constant_id = 4) const uint EACH = 1; // rows of x for each row of the step

layout(push_constant, scalar) uniform Push {
    uint64_t x;
    uint64_t halves;
    Step step;
    uint row_kind;
    uint columns;
    uint first_row;        // of the step
};

void main() {
    uint row = gl_WorkGroupID.y;
    if (first_row + row / EACH >= count_rows(step, row_kind)) return;
    uint runs = (columns + 31) / 32;
    uint lane = gl_LocalInvocationID.x;

    float largest = 0.0;
    for (uint column = 4 * lane; column < columns; column += 4 * WORKGROUP_SIZE) {
        vec4 quad = abs(load_input(x, columns, row, column));
        largest = max(largest, max(max(quad.x, quad.y), max(quad.z, quad.w)));
    }
    uint exponent = exponent_of(workgroup_max(largest));
    float inverse = inverse_power_of(exponent);

    for (uint octet = lane; octet < 4 * runs; octet += WORKGROUP_SIZE) {
        vec4 first = inverse * load_input(x, columns, row, 8 * octet);
        vec4 second = inverse * load_input(x, columns, row, 8 * octet + 4);
        WordQuads(run_of_halves(halves, row, octet / 4, runs)).at[octet % 4] = pack_columns(first, second);
    }
    if (lane == 0) divisor_of_halves(halves, row, runs).at[0] = power_of(exponent);
}
