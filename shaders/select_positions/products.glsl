// The products of queries with keys, and the order of scores.
//
// The including shader declares HEADS, for how many a key is read once, and the push constants `query` and `n_heads`. Its
// workgroups have a row each.

const uint KEY_QUADS = (KEY_DIM + 3) / 4;

// Four values of the query of a head of the row, with 0 after its end.
vec4 load_query(uint head, uint quad) {
    vec4 x = vec4(0.0);
    if (head >= n_heads) return x;
    uint start = (gl_WorkGroupID.y * n_heads + head) * KEY_DIM + 4 * quad;
    [[unroll]] for (uint c = 0; c < 4; c++) if (quad * 4 + c < KEY_DIM) x[c] = query.at[start + c];
    return x;
}

// The products of `HEADS` queries with a key.
void multiply(uint first_head, uint64_t record, uint slot, out float products[HEADS]) {
    vec4 sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = vec4(0.0);
    for (uint quad = 0; quad < KEY_QUADS; quad++) {
        vec4 key = load_cached(record, KEY_STRIDE, slot, quad);
        [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = fma(key, load_query(first_head + h, quad), sums[h]);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) products[h] = (sums[h].x + sums[h].y) + (sums[h].z + sums[h].w);
}

// A number that is larger for a larger score.
uint order_of(float score) {
    uint bits = floatBitsToUint(score == 0.0 ? 0.0 : score);
    return (bits >> 31) == 1 ? ~bits : bits | 0x80000000u;
}
