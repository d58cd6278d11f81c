#version 460
// Attention of one row to its sequence, for the query heads that share a KV head: one workgroup for each row, KV head and
// tile of query heads, and with SPLIT for each piece of the context.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softcap.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint HEADS = 1;        // of a tile
layout(constant_id = 2) const bool SPLIT = false;

layout(push_constant, scalar) uniform Push {
    Floats query;
    uint64_t keys;
    uint64_t values;
    uint64_t result;       // y, or with SPLIT the partial results
    Step step;
    uint n_heads;
    uint n_kv_heads;
    uint window;           // 0: none
    uint max_pieces;       // of a row, with SPLIT
    float scale;
    float cap;             // 0: none
};

const uint OWN_QUADS = (HEADS * HEAD_QUADS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

shared vec4 queries[HEADS * HEAD_QUADS];
shared float scores[HEADS][PIECE_TOKENS];
shared float lanes[HEADS][WORKGROUP_SIZE];

// What the workgroup works on.
uint row;
uint kv_head;
uint first_head;
uint heads;
uint table_start;

void load_queries() {
    for (uint i = gl_LocalInvocationID.x; i < HEADS * HEAD_QUADS; i += WORKGROUP_SIZE) {
        uint head = i / HEAD_QUADS;
        uint column = i % HEAD_QUADS * 4;
        vec4 quad = vec4(0.0);
        uint start = (row * n_heads + first_head + head) * HEAD_DIM + column;
        if (head < heads) {
            [[unroll]] for (uint c = 0; c < 4; c++) if (column + c < HEAD_DIM) quad[c] = query.at[start + c];
        }
        queries[i] = quad;
    }
    barrier();
}

void reduce_lanes(bool for_largest) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) {
            [[unroll]] for (uint h = 0; h < HEADS; h++) {
                float other = lanes[h][lane + stride];
                lanes[h][lane] = for_largest ? max(lanes[h][lane], other) : lanes[h][lane] + other;
            }
        }
        barrier();
    }
}

void score(uint position, uint slot_of_piece) {
    uint64_t record = record_of(keys, step, table_start, position, n_kv_heads, kv_head);
    vec4 sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = vec4(0.0);
    for (uint q = 0; q < HEAD_QUADS; q++) {
        vec4 key = load_cached(record, position % BLOCK_TOKENS, q);
        [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = fma(key, queries[h * HEAD_QUADS + q], sums[h]);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        float sum = scale * ((sums[h].x + sums[h].y) + (sums[h].z + sums[h].w));
        scores[h][slot_of_piece] = cap > 0.0 ? softcap(sum, cap) : sum;
    }
}

// Scores of the positions first..end of a piece, as weights of a softmax over them.
void weigh(uint start, uint first, uint end, out Softmax piece[HEADS]) {
    uint lane = gl_LocalInvocationID.x;
    float partial[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) partial[h] = -1.0 / 0.0;
    for (uint position = first + lane; position < end; position += WORKGROUP_SIZE) {
        score(position, position - start);
        [[unroll]] for (uint h = 0; h < HEADS; h++) partial[h] = max(partial[h], scores[h][position - start]);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) lanes[h][lane] = partial[h];
    reduce_lanes(true);
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        piece[h].largest = lanes[h][0];
        partial[h] = 0.0;
    }
    barrier();
    // Each position by its place in the piece, not in what is visible, so that sums do not depend on where that begins.
    for (uint place = lane; place < PIECE_TOKENS; place += WORKGROUP_SIZE) {
        uint position = start + place;
        if (position < first || position >= end) continue;
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            float weight = exp(scores[h][place] - piece[h].largest);
            scores[h][place] = weight;
            partial[h] += weight;
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) lanes[h][lane] = partial[h];
    reduce_lanes(false);
    [[unroll]] for (uint h = 0; h < HEADS; h++) piece[h].sum = lanes[h][0];
    barrier();
}

// The weighted sum of four dimensions of the values of a piece.
vec4 gather(uint start, uint first, uint end, uint head, uint quad) {
    vec4 sum = vec4(0.0);
    for (uint block = first / BLOCK_TOKENS * BLOCK_TOKENS; block < end; block += BLOCK_TOKENS) {
        uint64_t record = record_of(values, step, table_start, block, n_kv_heads, kv_head);
        for (uint position = max(block, first); position < min(block + BLOCK_TOKENS, end); position++) {
            vec4 value = load_cached(record, position - block, quad);
            sum = fma(vec4(scores[head][position - start]), value, sum);
        }
    }
    return sum;
}

void write_result(uint head, uint quad, vec4 gathered, float sum) {
    uint start = (row * n_heads + first_head + head) * HEAD_DIM + quad * 4;
    vec4 normed = gathered / sum;
    [[unroll]] for (uint c = 0; c < 4; c++) if (quad * 4 + c < HEAD_DIM) Floats(result).at[start + c] = normed[c];
}

// [row, head, piece] records of (largest, sum, -, -) and the gathered values.
void write_partial(uint piece, uint head, uint quad, vec4 gathered, Softmax softmax) {
    uint64_t record = (uint64_t(row * n_heads + first_head + head) * max_pieces + piece) * (HEAD_QUADS + 1);
    FloatQuads partials = FloatQuads(result + record * 16);
    if (quad == 0) partials.at[0] = vec4(softmax.largest, softmax.sum, 0.0, 0.0);
    partials.at[1 + quad] = gathered;
}

void main() {
    uint tiles = (n_heads / n_kv_heads + HEADS - 1) / HEADS;
    row = gl_WorkGroupID.y;
    kv_head = gl_WorkGroupID.x / tiles;
    first_head = kv_head * (n_heads / n_kv_heads) + gl_WorkGroupID.x % tiles * HEADS;
    heads = min(HEADS, (kv_head + 1) * (n_heads / n_kv_heads) - first_head);
    if (row >= step.rows) return;
    uint position = step.positions.at[row];
    uint first_visible = window > 0 && position + 1 > window ? position + 1 - window : 0;
    uint first_piece = first_visible / PIECE_TOKENS;
    uint last_piece = position / PIECE_TOKENS;
    if (SPLIT) {
        if (gl_WorkGroupID.z < first_piece || gl_WorkGroupID.z > last_piece) return;
        first_piece = gl_WorkGroupID.z;
        last_piece = gl_WorkGroupID.z;
    }
    table_start = step.table_starts.at[step.sequences.at[row]];
    load_queries();

    vec4 gathered[OWN_QUADS];
    [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) gathered[i] = vec4(0.0);
    Softmax softmax[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) softmax[h] = Softmax(-1.0 / 0.0, 0.0);
    for (uint piece = first_piece; piece <= last_piece; piece++) {
        uint start = piece * PIECE_TOKENS;
        uint first = max(start, first_visible);
        uint end = min(start + PIECE_TOKENS, position + 1);
        Softmax of_piece[HEADS];
        weigh(start, first, end, of_piece);
        vec2 factors[HEADS];
        [[unroll]] for (uint h = 0; h < HEADS; h++) factors[h] = merge(softmax[h], of_piece[h]);
        [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
            uint own = i * WORKGROUP_SIZE + gl_LocalInvocationID.x;
            if (own >= heads * HEAD_QUADS) continue;
            uint head = own / HEAD_QUADS;
            vec4 values_of_piece = gather(start, first, end, head, own % HEAD_QUADS);
            gathered[i] = merge_values(gathered[i], values_of_piece, factors[head]);
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
        uint own = i * WORKGROUP_SIZE + gl_LocalInvocationID.x;
        if (own >= heads * HEAD_QUADS) continue;
        uint head = own / HEAD_QUADS;
        if (SPLIT) {
            write_partial(last_piece, head, own % HEAD_QUADS, gathered[i], softmax[head]);
        } else {
            write_result(head, own % HEAD_QUADS, gathered[i], softmax[head].sum);
        }
    }
}
