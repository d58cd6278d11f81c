#version 460
// Attention of one row to its sequence, for query heads that share a KV head: one workgroup for each row, KV head and
// tile of query heads, and with SPLIT also for each piece of the context. `attend_tile.comp` is for many rows of one
// sequence. If a row does not see adjacent positions, `position` is the index of a cell.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softcap.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>
#include <attention/heads.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint HEADS = 1;        // of a tile
layout(constant_id = 2) const bool SPLIT = false;
layout(constant_id = 6) const uint SELECTED = 0; // a row sees only selected positions: those of a pool; 0: all positions

#include <attention/attend.glsl>
#include <attention/selection.glsl>

const uint OWN_QUADS = (HEADS * VALUE_QUADS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

shared vec4 queries[HEADS * KEY_QUADS];
shared float scores[HEADS][PIECE_TOKENS];
shared float lanes[HEADS][WORKGROUP_SIZE];

// The work of the workgroup.
uint row;
uint own_position;
uint kv_head;
uint first_head;
uint heads;
uint table_start;

#include <attention/cells.glsl>

void load_queries() {
    for (uint i = gl_LocalInvocationID.x; i < HEADS * KEY_QUADS; i += WORKGROUP_SIZE) {
        uint head = i / KEY_QUADS;
        queries[i] = head < heads ? load_query(row * n_heads + first_head + head, i % KEY_QUADS) : vec4(0.0);
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

void score(uint index, uint slot_of_piece) {
    Cell cell = cell_at(index);
    Place place = place_of(true, slot_of(cell));
    vec4 sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = vec4(0.0);
    for (uint q = 0; q < KEY_QUADS; q++) {
        vec4 key = load_cached(place.record, KEY_STRIDE, place.slots, place.slot, q);
        [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = fma(key, queries[h * KEY_QUADS + q], sums[h]);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        scores[h][slot_of_piece] = score_of(sums[h], first_head + h, own_position, cell.position);
    }
}

// Computes the scores of the positions first..end of a piece, and from them the weights of a softmax over the piece.
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
    // Positions are indexed by their slot in the piece, not in the visible range: sums do not depend on where that
    // starts.
    for (uint offset = lane; offset < PIECE_TOKENS; offset += WORKGROUP_SIZE) {
        uint position = start + offset;
        if (position < first || position >= end) continue;
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            float weight = exp(scores[h][offset] - piece[h].largest);
            scores[h][offset] = weight;
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
    if (LISTS_CELLS) {
        for (uint index = first; index < end; index++) {
            Place place = place_of(false, slot_of(cell_at(index)));
            vec4 value = load_cached(place.record, VALUE_STRIDE, place.slots, place.slot, quad);
            sum = fma(vec4(scores[head][index - start]), value, sum);
        }
        return sum;
    }
    for (uint block = first / BLOCK_TOKENS * BLOCK_TOKENS; block < end; block += BLOCK_TOKENS) {
        uint64_t record = record_of(values, VALUE_STRIDE, step, table_start, block, n_kv_heads, kv_head);
        for (uint position = max(block, first); position < min(block + BLOCK_TOKENS, end); position++) {
            vec4 value = load_cached(record, VALUE_STRIDE, position - block, quad);
            sum = fma(vec4(scores[head][position - start]), value, sum);
        }
    }
    return sum;
}

void main() {
    uint tiles = (n_heads / n_kv_heads + HEADS - 1) / HEADS;
    kv_head = gl_WorkGroupID.x / tiles;
    first_head = kv_head * (n_heads / n_kv_heads) + gl_WorkGroupID.x % tiles * HEADS;
    heads = min(HEADS, (kv_head + 1) * (n_heads / n_kv_heads) - first_head);
    if (!find_row(step, gl_WorkGroupID.y, row)) return;
    own_position = step.positions.at[row];
    uvec2 seen = seen_by(step, row, window, kind_of_window);
    window_start = seen.x;
    seen = cells_seen(seen);
    uint first_piece = seen.x / PIECE_TOKENS;
    uint last_piece = (seen.y - 1) / PIECE_TOKENS;
    if (SPLIT) {
        if (gl_WorkGroupID.z < first_piece || gl_WorkGroupID.z > last_piece) return;
        first_piece = gl_WorkGroupID.z;
        last_piece = gl_WorkGroupID.z;
    }
    table_start = table_start_of(step, row);
    load_queries();

    vec4 gathered[OWN_QUADS];
    [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) gathered[i] = vec4(0.0);
    Softmax softmax[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) softmax[h] = Softmax(-1.0 / 0.0, 0.0);
    for (uint piece = first_piece; piece <= last_piece; piece++) {
        uint start = piece * PIECE_TOKENS;
        uint first = max(start, seen.x);
        uint end = min(start + PIECE_TOKENS, seen.y);
        Softmax of_piece[HEADS];
        weigh(start, first, end, of_piece);
        vec2 factors[HEADS];
        [[unroll]] for (uint h = 0; h < HEADS; h++) factors[h] = merge(softmax[h], of_piece[h]);
        [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
            uint own = i * WORKGROUP_SIZE + gl_LocalInvocationID.x;
            if (own >= heads * VALUE_QUADS) continue;
            uint head = own / VALUE_QUADS;
            vec4 values_of_piece = gather(start, first, end, head, own % VALUE_QUADS);
            gathered[i] = merge_values(gathered[i], values_of_piece, factors[head]);
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < OWN_QUADS; i++) {
        uint own = i * WORKGROUP_SIZE + gl_LocalInvocationID.x;
        if (own >= heads * VALUE_QUADS) continue;
        uint head = own / VALUE_QUADS;
        uint quad = own % VALUE_QUADS;
        write_gathered(row, gl_WorkGroupID.y, first_head + head, last_piece, quad, gathered[i], softmax[head]);
    }
}
