// The first product of a low-rank change, `h = A x`: a workgroup computes TILE values of a row. Each invocation adds every
// WORKGROUP_SIZE-th column, and the sums of all invocations are added in a tree, so that the bits of a row do not depend on
// the other rows.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

const uint TILE = 4;

shared vec4 lanes[WORKGROUP_SIZE];

// Values first..first + TILE of h for one row x, times a weight. All invocations must call it.
void shrink_row(Change change, Floats x, float weight, Floats h, uint first, uint columns) {
    // Rows of A past the last repeat it; their results are not stored.
    Floats a[TILE];
    [[unroll]] for (uint k = 0; k < TILE; k++) {
        a[k] = Floats(change.a + uint64_t(min(first + k, change.rank - 1)) * columns * 4);
    }
    uint lane = gl_LocalInvocationID.x;
    vec4 sum = vec4(0.0);
    for (uint column = lane; column < columns; column += WORKGROUP_SIZE) {
        precise float value = x.at[column] * weight;
        vec4 of_rows = vec4(a[0].at[column], a[1].at[column], a[2].at[column], a[3].at[column]);
        sum = fma(of_rows, vec4(value), sum);
    }
    lanes[lane] = sum;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) lanes[lane] += lanes[lane + stride];
        barrier();
    }
    if (lane < min(TILE, change.rank - first)) h.at[first + lane] = lanes[0][lane];
}
