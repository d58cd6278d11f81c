#version 460
// Attention of a tile of queries: some rows of one sequence and some heads of one KV head. Keys and values are read
// once for all of them. One workgroup for each tile, and with SPLIT also for each piece of the context.
//
// The sums of a query have the same terms in the same order as in `attend.comp`, so its bits are the same. A score is
// four chains over the dimensions. A value is one chain over the positions of a piece, to which invisible positions add
// 0. The sum of the weights is the same tree of LANES partial sums that the invocations of `attend.comp` form.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softcap.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>
#include <attention/heads.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint HEADS = 1;        // of a tile
layout(constant_id = 2) const bool SPLIT = false;
layout(constant_id = 3) const uint LANES = 64;       // of a workgroup of `attend.comp`

#include <attention/attend.glsl>

const uint QUERIES = WORKGROUP_SIZE / 4;             // of a tile, row after row

#include <attention/query_tile.glsl>

// Scores are computed for SPAN_TOKENS positions at a time, from STAGE_QUADS quads of keys and queries in shared memory.
// Each invocation computes scores, and later values, for 4 queries; its column distinguishes the 16 invocations of the
// same queries.
const uint SPAN_TOKENS = 64;
const uint COLUMNS = 16;
const uint STAGE_QUADS = 8;
const uint STAGE_STRIDE = STAGE_QUADS + 1;           // neighbours read different banks

const uint PIECE_QUADS = PIECE_TOKENS / 4;
const uint WEIGHTS_STRIDE = PIECE_QUADS + 1;
const uint OWN_QUADS = (VALUE_QUADS + COLUMNS - 1) / COLUMNS;

shared vec4 weights[QUERIES * WEIGHTS_STRIDE];       // [query, position of the piece]; first the scores
shared vec4 stage[(QUERIES + SPAN_TOKENS) * STAGE_STRIDE]; // queries, then keys; between scores the operands of the softmax reduction
shared Softmax softmaxes[QUERIES];                   // at the end
shared vec2 factors[QUERIES];                        // of `merge`

// The work of the invocation.
uint column = gl_LocalInvocationID.x % COLUMNS;
uint first_query = gl_LocalInvocationID.x / COLUMNS * 4;

void load_stage(uint span, uint first, uint end, uint first_quad) {
    for (uint i = gl_LocalInvocationID.x; i < QUERIES * STAGE_QUADS; i += WORKGROUP_SIZE) {
        uint query = i / STAGE_QUADS;
        uint quad = i % STAGE_QUADS;
        vec4 x = vec4(0.0);
        if (is_query(query)) x = load_query(row_of(query) * n_heads + head_of(query), first_quad + quad);
        stage[query * STAGE_STRIDE + quad] = x;
    }
    for (uint i = gl_LocalInvocationID.x; i < SPAN_TOKENS * STAGE_QUADS; i += WORKGROUP_SIZE) {
        uint offset = i / STAGE_QUADS;
        uint quad = i % STAGE_QUADS;
        uint position = span + offset;
        vec4 key = vec4(0.0);
        if (position >= first && position < end && first_quad + quad < KEY_QUADS) {
            uint64_t record = record_of(keys, KEY_STRIDE, step, table_start, position, n_kv_heads, kv_head);
            key = load_cached(record, KEY_STRIDE, position % BLOCK_TOKENS, first_quad + quad);
        }
        // An invocation computes the scores of four successive positions, which are stored COLUMNS apart here.
        stage[(QUERIES + offset % 4 * COLUMNS + offset / 4) * STAGE_STRIDE + quad] = key;
    }
}

// Computes the scores of those positions of a span that are in first..end.
void form_scores(uint start, uint span, uint first, uint end) {
    vec4 sums[4][4]; // [query][position]
    [[unroll]] for (uint q = 0; q < 4; q++) [[unroll]] for (uint p = 0; p < 4; p++) sums[q][p] = vec4(0.0);
    for (uint first_quad = 0; first_quad < KEY_QUADS; first_quad += STAGE_QUADS) {
        barrier();
        load_stage(span, first, end, first_quad);
        barrier();
        uint quads = min(STAGE_QUADS, KEY_QUADS - first_quad);
        for (uint quad = 0; quad < quads; quad++) {
            vec4 keys_of_four[4];
            [[unroll]] for (uint p = 0; p < 4; p++) {
                keys_of_four[p] = stage[(QUERIES + p * COLUMNS + column) * STAGE_STRIDE + quad];
            }
            [[unroll]] for (uint q = 0; q < 4; q++) {
                vec4 x = stage[(first_query + q) * STAGE_STRIDE + quad];
                [[unroll]] for (uint p = 0; p < 4; p++) sums[q][p] = fma(keys_of_four[p], x, sums[q][p]);
            }
        }
    }
    [[unroll]] for (uint q = 0; q < 4; q++) {
        uint query = first_query + q;
        vec4 scores;
        [[unroll]] for (uint p = 0; p < 4; p++) {
            scores[p] = score_of(sums[q][p], head_of(query), position_of(query), span + 4 * column + p);
        }
        weights[query * WEIGHTS_STRIDE + (span - start) / 4 + column] = scores;
    }
}

// Which of the four slots from `offset` on are in the range.
bvec4 within(uint offset, uvec2 range) {
    uvec4 offsets = offset + uvec4(0, 1, 2, 3);
    bvec4 is_within;
    [[unroll]] for (uint c = 0; c < 4; c++) is_within[c] = offsets[c] >= range.x && offsets[c] < range.y;
    return is_within;
}

// Replaces the scores of a piece by weights, and merges each query's softmax over the piece with that of the earlier
// pieces. Four invocations share a query; each handles every fourth quad of its positions.
void weigh(uint start, inout Softmax softmax) {
    const uint PARTS = 4;
    uint query = gl_LocalInvocationID.x / PARTS;
    uint part = gl_LocalInvocationID.x % PARTS;
    uint own = query * WEIGHTS_STRIDE;
    uvec2 visible = uvec2(0);
    if (is_query(query)) {
        uvec2 seen = seen_by(step, row_of(query), window, kind_of_window);
        visible = clamp(seen, start, start + PIECE_TOKENS) - start;
    }

    float largest = -1.0 / 0.0;
    for (uint quad = part; quad < PIECE_QUADS; quad += PARTS) {
        vec4 scores = mix(vec4(-1.0 / 0.0), weights[own + quad], within(4 * quad, visible));
        largest = max(largest, max(max(scores.x, scores.y), max(scores.z, scores.w)));
    }
    stage[query * PARTS + part].x = largest;
    barrier();
    [[unroll]] for (uint other = 0; other < PARTS; other++) largest = max(largest, stage[query * PARTS + other].x);

    vec4 sums[LANES / 4 / PARTS];
    [[unroll]] for (uint i = 0; i < LANES / 4 / PARTS; i++) {
        sums[i] = vec4(0.0);
        for (uint quad = part + i * PARTS; quad < PIECE_QUADS; quad += LANES / 4) {
            vec4 weight = mix(vec4(0.0), exp(weights[own + quad] - largest), within(4 * quad, visible));
            weights[own + quad] = weight;
            sums[i] += weight;
        }
    }
    [[unroll]] for (uint stride = LANES / 8 / PARTS; stride > 0; stride /= 2) {
        [[unroll]] for (uint i = 0; i < stride; i++) sums[i] += sums[i + stride];
    }
    uint of_query = (QUERIES + query) * PARTS;
    stage[of_query + part] = sums[0];
    barrier();
    vec4 sum = (stage[of_query] + stage[of_query + 2]) + (stage[of_query + 1] + stage[of_query + 3]);
    bool sees_any = visible.x < visible.y;
    vec2 factors_of_query = vec2(1.0, 0.0);
    if (sees_any) factors_of_query = merge(softmax, Softmax(largest, (sum.x + sum.z) + (sum.y + sum.w)));
    if (part == 0) {
        factors[query] = factors_of_query;
        softmaxes[query] = softmax;
    }
    barrier();
}

// The weighted sums of four dimensions of the values at positions first..end of a piece.
void gather(uint start, uint first, uint end, uint quad, out vec4 sums[4]) {
    [[unroll]] for (uint q = 0; q < 4; q++) sums[q] = vec4(0.0);
    for (uint four = first / 4 * 4; four < end; four += 4) {
        uint64_t record = record_of(values, VALUE_STRIDE, step, table_start, four, n_kv_heads, kv_head);
        vec4 weights_of_four[4];
        [[unroll]] for (uint q = 0; q < 4; q++) {
            weights_of_four[q] = weights[(first_query + q) * WEIGHTS_STRIDE + (four - start) / 4];
        }
        [[unroll]] for (uint p = 0; p < 4; p++) {
            // Slots that no query sees may hold anything, including NaN: they must not be multiplied.
            if (four + p < first || four + p >= end) continue;
            vec4 value = load_cached(record, VALUE_STRIDE, four % BLOCK_TOKENS + p, quad);
            [[unroll]] for (uint q = 0; q < 4; q++) sums[q] = fma(vec4(weights_of_four[q][p]), value, sums[q]);
        }
    }
}

void main() {
    if (!find_tile(gl_WorkGroupID.y)) return;
    uint first_piece = first_seen / PIECE_TOKENS;
    uint last_piece = (end_seen - 1) / PIECE_TOKENS;
    if (SPLIT) {
        if (gl_WorkGroupID.z < first_piece || gl_WorkGroupID.z > last_piece) return;
        first_piece = gl_WorkGroupID.z;
        last_piece = gl_WorkGroupID.z;
    }

    vec4 gathered[OWN_QUADS][4];
    [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) [[unroll]] for (uint q = 0; q < 4; q++) gathered[i][q] = vec4(0.0);
    Softmax softmax = Softmax(-1.0 / 0.0, 0.0);
    for (uint piece = first_piece; piece <= last_piece; piece++) {
        uint start = piece * PIECE_TOKENS;
        uint first = max(start, first_seen);
        uint end = min(start + PIECE_TOKENS, end_seen);
        for (uint span = first / SPAN_TOKENS * SPAN_TOKENS; span < end; span += SPAN_TOKENS) {
            form_scores(start, span, first, end);
        }
        barrier();
        weigh(start, softmax);
        [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
            uint quad = i * COLUMNS + column;
            if (quad >= VALUE_QUADS) continue;
            vec4 of_piece[4];
            gather(start, first, end, quad, of_piece);
            [[unroll]] for (uint q = 0; q < 4; q++) {
                gathered[i][q] = merge_values(gathered[i][q], of_piece[q], factors[first_query + q]);
            }
        }
        barrier();
    }
    [[unroll]] for (uint q = 0; q < 4; q++) {
        uint query = first_query + q;
        if (!is_query(query)) continue;
        [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
            uint quad = i * COLUMNS + column;
            if (quad >= VALUE_QUADS) continue;
            uint row = row_of(query);
            write_gathered(row, row, head_of(query), last_piece, quad, gathered[i][q], softmaxes[query]);
        }
    }
}
