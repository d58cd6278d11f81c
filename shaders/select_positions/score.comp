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

const uint HEADS = 8;      // for which a key is read once

#include <select_positions/products.glsl>

// The weighted sum of the positive products of `HEADS` queries with a key.
float score_of(uint first_head, uint64_t record, uint slot, float score) {
    float products[HEADS];
    multiply(first_head, record, slot, products);
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        if (first_head + h >= n_heads) break;
        score = fma(weight.at[gl_WorkGroupID.y * n_heads + first_head + h], max(products[h], 0.0), score);
    }
    return score;
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step.rows) return;
    uint own = step.positions.at[row];
    if (own < all_up_to) return;
    uint table_start = table_start_of(step, row);
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
