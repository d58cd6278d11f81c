#version 460
// The weights with which some heads of a row attend to the first positions of its sequence: one workgroup for each head and row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>
#include <attention/cache.glsl>
#include <attention/sizes.glsl>

layout(push_constant, scalar) uniform Push {
    Floats query;
    uint64_t keys;
    Floats heads;          // the numbers of the heads
    Floats y;
    Step step;
    uint n_heads;
    uint n_kv_heads;
    uint positions;
    float scale;
};

const uint KEY_QUADS = (KEY_DIM + 3) / 4;

// Four values of the query, with 0 after its end.
vec4 load_query(uint start, uint quad) {
    vec4 x = vec4(0.0);
    [[unroll]] for (uint c = 0; c < 4; c++) if (quad * 4 + c < KEY_DIM) x[c] = query.at[start + 4 * quad + c];
    return x;
}

float score_of(uint start, uint64_t record, uint slot) {
    vec4 sums = vec4(0.0);
    for (uint quad = 0; quad < KEY_QUADS; quad++) {
        sums = fma(load_cached(record, KEY_STRIDE, slot, quad), load_query(start, quad), sums);
    }
    return scale * ((sums.x + sums.y) + (sums.z + sums.w));
}

void main() {
    uint index = gl_WorkGroupID.y;
    if (index >= step.hidden) return;
    uint lane = gl_LocalInvocationID.x;
    uint row = step.hidden_selection.at[index];
    uint head = uint(heads.at[gl_WorkGroupID.x]);
    uint kv_head = head / (n_heads / n_kv_heads);
    uint table_start = table_start_of(step, row);
    uint query_start = (row * n_heads + head) * KEY_DIM;
    uint first = (index * gl_NumWorkGroups.x + gl_WorkGroupID.x) * positions;
    // Each invocation writes and reads positions of its own.
    float largest = -1.0 / 0.0;
    for (uint position = lane; position < positions; position += WORKGROUP_SIZE) {
        uint64_t record = record_of(keys, KEY_STRIDE, step, table_start, position, n_kv_heads, kv_head);
        float score = score_of(query_start, record, position % BLOCK_TOKENS);
        y.at[first + position] = score;
        largest = max(largest, score);
    }
    largest = workgroup_max(largest);
    float sum = 0.0;
    for (uint position = lane; position < positions; position += WORKGROUP_SIZE) {
        float weight = exp(y.at[first + position] - largest);
        y.at[first + position] = weight;
        sum += weight;
    }
    sum = workgroup_sum(sum);
    for (uint position = lane; position < positions; position += WORKGROUP_SIZE) y.at[first + position] /= sum;
}
