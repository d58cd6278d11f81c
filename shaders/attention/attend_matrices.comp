#version 460
// Attention of a tile of queries with cooperative matrices: float16 products, float32 sums.
//
// A workgroup iterates over the positions that its queries see, a span at a time. Each subgroup has M queries. It
// multiplies them by the keys of the span, replaces the scores by weights, and multiplies these by the values. Keys and
// values of a span are staged in the same shared memory, first the keys; the next ones are loaded meanwhile. Scores,
// weights and factors are exchanged between the invocations of a subgroup only.
//
// A weight is exp(score - reference). The reference of a query is the largest of its scores, or at most SLACK less, so that it
// changes rarely: then what was summed so far is multiplied by a matrix that has the factor of each query in all columns of
// its row.
//
// Queries are divided by a power of two, as in `halves.comp`, so that float16 can represent them.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>
#include <gpu/half_range.glsl>
#include <gpu/softcap.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>
#include <attention/heads.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint HEADS = 1;        // of a tile
layout(constant_id = 2) const bool SPLIT = false;
layout(constant_id = 3) const uint SUBGROUP_SIZE = 32;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;
layout(constant_id = 9) const uint SPAN_TOKENS = 64; // positions at a time

#include <attention/attend.glsl>

const uint QUERIES = WORKGROUP_SIZE / SUBGROUP_SIZE * M;

#include <attention/query_tile.glsl>

// In units of eight float16 values or four float32 values. The stride of rows is an odd number of them, so that the eight
// rows that a matrix reads at once are in different banks.
const uint KEY_OCTETS = (KEY_DIM + 31) / 32 * 4;
const uint VALUE_OCTETS = (VALUE_DIM + 15) / 16 * 2;
const uint MOST_OCTETS = KEY_OCTETS > VALUE_OCTETS ? KEY_OCTETS : VALUE_OCTETS;
const uint QUERY_STRIDE = KEY_OCTETS + 1;
const uint STRIDE = MOST_OCTETS + 1;                 // of keys and values
const uint SCORE_STRIDE = SPAN_TOKENS / 4 + 1;
const uint FIRST_SCORE = SPAN_TOKENS * STRIDE;
const uint OCTETS_IN_LOOP = FIRST_SCORE + QUERIES * SCORE_STRIDE;
const uint OCTETS_OF_QUERIES = QUERIES * QUERY_STRIDE;
const uint FIRST_FACTOR = SPAN_TOKENS / 8;           // of a row of scores, after its weights

const uint KEY_MATRICES = KEY_OCTETS * 8 / K;
const uint VALUE_MATRICES = VALUE_OCTETS * 8 / N;
const uint SPAN_MATRICES = SPAN_TOKENS / N;

// The keys or values that an invocation stages: of each block of the span, and in all.
const uint BLOCKS = SPAN_TOKENS / BLOCK_TOKENS;
const uint OCTETS_OF_BLOCK = (BLOCK_TOKENS * MOST_OCTETS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint OCTETS_EACH = BLOCKS * OCTETS_OF_BLOCK;

// PARTS invocations share the scores of a query. Each has runs of four quads.
const uint PARTS = SUBGROUP_SIZE / M;
const uint QUADS_EACH = SPAN_TOKENS / 4 / PARTS;

// How far a score may exceed the reference of its query. Weights up to exp(SLACK) are far inside the range of float16.
const float SLACK = 5.0;

const float LOG2_E = 1.44269504;
const float INFINITY = 1.0 / 0.0;

// Keys or values, then the scores of each query. At first the queries.
shared uvec4 staged[OCTETS_IN_LOOP > OCTETS_OF_QUERIES ? OCTETS_IN_LOOP : OCTETS_OF_QUERIES];
shared float exchanged[WORKGROUP_SIZE];              // by the invocations of a query
shared Softmax softmaxes[QUERIES];                   // at the end
shared uint rescaled[WORKGROUP_SIZE / SUBGROUP_SIZE]; // of each subgroup: a number of the last span that changed a reference

// The work of the invocation.
uint part = gl_SubgroupInvocationID % PARTS;
uint own_query = gl_SubgroupID * M + gl_SubgroupInvocationID / PARTS;
uint own_scores = FIRST_SCORE + own_query * SCORE_STRIDE;
uvec2 seen = uvec2(0); // by its query
float unit;            // the power of two of its query

// The largest value of the invocations of a query.
float largest_of_query(float value) {
    uint own = gl_SubgroupID * SUBGROUP_SIZE + gl_SubgroupInvocationID;
    exchanged[own] = value;
    subgroupBarrier();
    [[unroll]] for (uint p = 0; p < PARTS; p++) value = max(value, exchanged[own - part + p]);
    subgroupBarrier();
    return value;
}

// Stages the invocation's part of its query, multiplied by the scale of the scores.
void stage_query() {
    uint row_and_head = row_of(own_query) * n_heads + head_of(own_query);
    float largest = 0.0;
    if (is_query(own_query)) {
        seen = seen_by(step, row_of(own_query), window, kind_of_window);
        for (uint quad = part; quad < 2 * KEY_OCTETS; quad += PARTS) {
            vec4 x = abs(scale * load_query(row_and_head, quad));
            largest = max(largest, max(max(x.x, x.y), max(x.z, x.w)));
        }
    }
    uint exponent = exponent_of(largest_of_query(largest));
    unit = power_of(exponent);
    float factor = scale * inverse_power_of(exponent);
    for (uint octet = part; octet < KEY_OCTETS; octet += PARTS) {
        uvec4 halves = uvec4(0);
        if (is_query(own_query)) {
            vec4 first = load_query(row_and_head, 2 * octet);
            halves = pack_halves(factor * first, factor * load_query(row_and_head, 2 * octet + 1));
        }
        staged[own_query * QUERY_STRIDE + octet] = halves;
    }
}

const Octet NONE = Octet(uvec4(0), uvec4(0));

// An octet in float16. In 8 bits, values can be beyond its range.
uvec4 to_halves(Octet octet) {
    if (KV_TYPE == 1) return octet.first;
    vec4 most = vec4(65504.0);
    return pack_halves(clamp(octet_values(octet, 0), -most, most), clamp(octet_values(octet, 1), -most, most));
}

// Loads the invocation's part of the keys or values of a span. Slots that no query sees may hold anything, including NaN:
// zeros are staged for them.
void load_next(uint64_t cache, uint stride, uint octets, uint span, uvec2 range, out Octet next[OCTETS_EACH]) {
    [[unroll]] for (uint b = 0; b < BLOCKS; b++) {
        uint block = span + b * BLOCK_TOKENS;
        uint64_t record = 0;
        if (block < range.y && block + BLOCK_TOKENS > range.x) record = record_of(cache, stride, step, table_start, block, n_kv_heads, kv_head);
        [[unroll]] for (uint e = 0; e < OCTETS_OF_BLOCK; e++) {
            uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
            uint slot = i / octets;
            uint octet = i % octets;
            bool is_slot = slot < BLOCK_TOKENS && block + slot >= range.x && block + slot < range.y;
            next[b * OCTETS_OF_BLOCK + e] = NONE;
            if (!is_slot || octet * 8 >= stride) continue;
            next[b * OCTETS_OF_BLOCK + e] = load_octet(record, stride, BLOCK_TOKENS, slot, octet);
        }
    }
}

void stage(uint octets, Octet next[OCTETS_EACH]) {
    [[unroll]] for (uint b = 0; b < BLOCKS; b++) {
        [[unroll]] for (uint e = 0; e < OCTETS_OF_BLOCK; e++) {
            uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
            uint start = (b * BLOCK_TOKENS + i / octets) * STRIDE + i % octets;
            if (i / octets < BLOCK_TOKENS) staged[start] = to_halves(next[b * OCTETS_OF_BLOCK + e]);
        }
    }
}

// The quad of the span that is the invocation's quad `i`.
uint own_quad(uint i) {
    return (i / 4 * PARTS + part) * 4 + i % 4;
}

// Scores with what depends on the head and the position.
vec4 adjusted(vec4 scores, uint first_position_of_quad) {
    [[unroll]] for (uint c = 0; c < 4; c++) {
        float score = cap > 0.0 ? softcap(scores[c], cap) : scores[c];
        scores[c] = with_slope(score, head_of(own_query), position_of(own_query), first_position_of_quad + c);
    }
    return scores;
}

vec4 visible_scores(vec4 scores, uint first_position_of_quad) {
    [[unroll]] for (uint c = 0; c < 4; c++) {
        uint position = first_position_of_quad + c;
        if (position < seen.x || position >= seen.y) scores[c] = -INFINITY;
    }
    return scores;
}

// Replaces the scores of a span by weights in float16 and the factor of what was summed before.
void weigh(uint span, inout Softmax softmax) {
    vec4 scores[QUADS_EACH];
    float factor = unit;
    [[unroll]] for (uint i = 0; i < QUADS_EACH; i++) scores[i] = uintBitsToFloat(staged[own_scores + own_quad(i)]);
    if (cap > 0.0 || slopes != 0) {
        [[unroll]] for (uint i = 0; i < QUADS_EACH; i++) scores[i] = adjusted(unit * scores[i], span + 4 * own_quad(i));
        factor = 1.0;
    }
    if (span < seen.x || span + SPAN_TOKENS > seen.y) {
        [[unroll]] for (uint i = 0; i < QUADS_EACH; i++) scores[i] = visible_scores(scores[i], span + 4 * own_quad(i));
    }
    vec4 most = scores[0];
    [[unroll]] for (uint i = 1; i < QUADS_EACH; i++) most = max(most, scores[i]);
    float largest = largest_of_query(factor * max(max(most.x, most.y), max(most.z, most.w)));

    float rescale = 1.0;
    if (largest > softmax.largest + SLACK) {
        rescale = exp(softmax.largest - largest);
        softmax.largest = largest;
        rescaled[gl_SubgroupID] = span + 1;
    }
    for (uint quad = part; quad < N / 4; quad += PARTS) {
        staged[own_scores + FIRST_FACTOR + quad] = floatBitsToUint(vec4(rescale));
    }
    // Without any visible position so far, all weights are 0.
    float reference = softmax.largest == -INFINITY ? 0.0 : LOG2_E * softmax.largest;
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint i = 0; i < QUADS_EACH; i += 2) {
        vec4 first = exp2(fma(scores[i], vec4(LOG2_E * factor), vec4(-reference)));
        vec4 second = exp2(fma(scores[i + 1], vec4(LOG2_E * factor), vec4(-reference)));
        sums += first + second;
        staged[own_scores + own_quad(i) / 2] = pack_halves(first, second);
    }
    softmax.sum = fma(softmax.sum, rescale, (sums.x + sums.z) + (sums.y + sums.w));
}

void main() {
    // The last tiles see the most positions, so they are the first to start.
    if (!find_tile(gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y)) return;
    uvec2 range = uvec2(first_seen, end_seen);
    uint piece = (end_seen - 1) / PIECE_TOKENS;
    if (SPLIT) {
        piece = gl_WorkGroupID.z;
        range = clamp(range, piece * PIECE_TOKENS, (piece + 1) * PIECE_TOKENS);
        if (range.x >= range.y) return;
    }
    if (gl_SubgroupInvocationID == 0) rescaled[gl_SubgroupID] = 0;
    stage_query();
    subgroupBarrier();
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_queries[KEY_MATRICES];
    [[unroll]] for (uint k = 0; k < KEY_MATRICES; k++) {
        uint start = gl_SubgroupID * M * QUERY_STRIDE + k * K / 8;
        coopMatLoad(of_queries[k], staged, start, QUERY_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[VALUE_MATRICES];
    [[unroll]] for (uint v = 0; v < VALUE_MATRICES; v++) {
        sums[v] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Softmax softmax = Softmax(-INFINITY, 0.0);
    uint first_score = FIRST_SCORE + gl_SubgroupID * M * SCORE_STRIDE;

    uint span = range.x / SPAN_TOKENS * SPAN_TOKENS;
    Octet next[OCTETS_EACH];
    load_next(keys, KEY_STRIDE, KEY_OCTETS, span, range, next);
    for (; span < range.y; span += SPAN_TOKENS) {
        barrier();
        stage(KEY_OCTETS, next);
        barrier();
        load_next(values, VALUE_STRIDE, VALUE_OCTETS, span, range, next);
        coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> scores[SPAN_MATRICES];
        [[unroll]] for (uint s = 0; s < SPAN_MATRICES; s++) {
            scores[s] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
        }
        [[unroll]] for (uint k = 0; k < KEY_MATRICES; k++) {
            [[unroll]] for (uint s = 0; s < SPAN_MATRICES; s++) {
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_keys;
                coopMatLoad(of_keys, staged, s * N * STRIDE + k * K / 8, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                scores[s] = coopMatMulAdd(of_queries[k], of_keys, scores[s]);
            }
        }
        [[unroll]] for (uint s = 0; s < SPAN_MATRICES; s++) {
            coopMatStore(scores[s], staged, first_score + s * N / 4, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        weigh(span, softmax);
        barrier();
        stage(VALUE_OCTETS, next);
        barrier();
        if (span + SPAN_TOKENS < range.y) load_next(keys, KEY_STRIDE, KEY_OCTETS, span + SPAN_TOKENS, range, next);
        if (rescaled[gl_SubgroupID] == span + 1) {
            coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> factors;
            coopMatLoad(factors, staged, first_score + FIRST_FACTOR, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint v = 0; v < VALUE_MATRICES; v++) sums[v] = sums[v] * factors;
        }
        [[unroll]] for (uint k = 0; k < SPAN_TOKENS / K; k++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> weights;
            coopMatLoad(weights, staged, first_score + k * K / 8, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint v = 0; v < VALUE_MATRICES; v++) {
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_values;
                coopMatLoad(of_values, staged, k * K * STRIDE + v * N / 8, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                sums[v] = coopMatMulAdd(weights, of_values, sums[v]);
            }
        }
    }

    exchanged[gl_SubgroupID * SUBGROUP_SIZE + gl_SubgroupInvocationID] = softmax.sum;
    subgroupBarrier();
    if (part == 0) {
        [[unroll]] for (uint p = 1; p < PARTS; p++) {
            softmax.sum += exchanged[gl_SubgroupID * SUBGROUP_SIZE + gl_SubgroupInvocationID + p];
        }
        softmaxes[own_query] = softmax;
    }
    [[unroll]] for (uint v = 0; v < VALUE_MATRICES; v++) {
        subgroupBarrier();
        coopMatStore(sums[v], staged, first_score, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        for (uint i = gl_SubgroupInvocationID; i < M * N / 4; i += SUBGROUP_SIZE) {
            uint query = gl_SubgroupID * M + i / (N / 4);
            uint quad = i % (N / 4);
            if (!is_query(query) || v * N / 4 + quad >= VALUE_QUADS) continue;
            vec4 gathered = uintBitsToFloat(staged[FIRST_SCORE + query * SCORE_STRIDE + quad]);
            uint row = row_of(query);
            write_gathered(row, row, head_of(query), piece, v * N / 4 + quad, gathered, softmaxes[query]);
        }
    }
}
