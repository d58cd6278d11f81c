#version 460
// The scores of the whole pools of each row's sequence up to its own position, as numbers of the same order: one invocation for
// each pool, whose last position has its key. Rows that select all positions need no scores.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <attention/cache.glsl>
#include <attention/sizes.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

layout(push_constant, scalar) uniform Push {
    Floats query;
    Floats weight;
    uint64_t keys;
    Words scores;
    Step step;
    uint n_heads;
    uint all_up_to;        // the most positions of a row that selects all
    uint pool;             // positions of a pool
    uint context;          // scores of a row
};

const uint KEY_QUADS = (KEY_DIM + 3) / 4;
const uint HEADS = 8;      // for which a key is read once

// Four values of the query of a head of the row, with 0 after its end.
vec4 load_query(uint head, uint quad) {
    vec4 x = vec4(0.0);
    if (head >= n_heads) return x;
    uint start = (gl_WorkGroupID.y * n_heads + head) * KEY_DIM + 4 * quad;
    [[unroll]] for (uint c = 0; c < 4; c++) if (quad * 4 + c < KEY_DIM) x[c] = query.at[start + c];
    return x;
}

// The weighted sum of the positive products of `HEADS` queries with a key.
float score_of(uint first_head, uint64_t record, uint slot, float score) {
    vec4 sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = vec4(0.0);
    for (uint quad = 0; quad < KEY_QUADS; quad++) {
        vec4 key = load_cached(record, KEY_STRIDE, slot, quad);
        [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = fma(key, load_query(first_head + h, quad), sums[h]);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        if (first_head + h >= n_heads) break;
        float product = (sums[h].x + sums[h].y) + (sums[h].z + sums[h].w);
        score = fma(weight.at[gl_WorkGroupID.y * n_heads + first_head + h], max(product, 0.0), score);
    }
    return score;
}

// A number that is larger for a larger score.
uint order_of(float score) {
    uint bits = floatBitsToUint(score == 0.0 ? 0.0 : score);
    return (bits >> 31) == 1 ? ~bits : bits | 0x80000000u;
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step.rows) return;
    uint own = step.positions.at[row];
    if (own < all_up_to) return;
    uint table_start = step.table_starts.at[step.sequences.at[row]];
    for (uint index = gl_GlobalInvocationID.x; index < (own + 1) / pool; index += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        uint position = index * pool + pool - 1;
        uint64_t record = record_of(keys, KEY_STRIDE, step, table_start, position, 1, 0);
        float score = 0.0;
        for (uint head = 0; head < n_heads; head += HEADS) {
            score = score_of(head, record, position % BLOCK_TOKENS, score);
        }
        scores.at[row * context + index] = order_of(score);
    }
}
