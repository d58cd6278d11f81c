#version 460
// The scores of the pools of each row's sequence up to its own position, for each head by itself, as numbers of the same order: one
// workgroup for each pool in turn. The score of a pool is the highest of its positions. The last pools have the highest number, so that
// they are selected in any case. Rows that select all positions need no scores.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <attention/cache.glsl>
#include <attention/sizes.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint HEADS = 8; // for which a key is read once

layout(push_constant, scalar) uniform Push {
    Floats query;
    uint64_t keys;
    Words scores;
    Step step;
    uint n_heads;
    uint all_up_to;        // the most positions of a row that selects all
    uint pool;             // positions of a pool
    uint last;             // pools that are selected in any case
    uint context;          // scores of a head of a row
};

#include <select_positions/products.glsl>

shared uint highest[HEADS];

// The highest scores of the invocation's positions of first..end.
void score(uint first_head, uint table_start, uint first, uint end, out uint own[HEADS]) {
    [[unroll]] for (uint h = 0; h < HEADS; h++) own[h] = 0;
    for (uint position = first + gl_LocalInvocationID.x; position < end; position += WORKGROUP_SIZE) {
        uint64_t record = record_of(keys, KEY_STRIDE, step, table_start, position, 1, 0);
        float products[HEADS];
        multiply(first_head, record, position % BLOCK_TOKENS, products);
        [[unroll]] for (uint h = 0; h < HEADS; h++) own[h] = max(own[h], order_of(products[h]));
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step.rows) return;
    uint own_position = step.positions.at[row];
    if (own_position < all_up_to) return;
    uint lane = gl_LocalInvocationID.x;
    uint table_start = table_start_of(step, row);
    uint pools = own_position / pool + 1;
    for (uint index = gl_WorkGroupID.x; index < pools; index += gl_NumWorkGroups.x) {
        bool is_last = index + last >= pools;
        uint end = is_last ? 0 : (index + 1) * pool;
        for (uint first_head = 0; first_head < n_heads; first_head += HEADS) {
            barrier();
            for (uint h = lane; h < HEADS; h += WORKGROUP_SIZE) highest[h] = 0;
            barrier();
            uint own[HEADS];
            score(first_head, table_start, index * pool, end, own);
            [[unroll]] for (uint h = 0; h < HEADS; h++) atomicMax(highest[h], own[h]);
            barrier();
            for (uint h = lane; h < HEADS && first_head + h < n_heads; h += WORKGROUP_SIZE) {
                scores.at[(row * n_heads + first_head + h) * context + index] = is_last ? ~0u : highest[h];
            }
        }
    }
}
