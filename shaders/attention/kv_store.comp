#version 460
// Stores the keys and values of the step's rows: one invocation for each group of values of each head of each row.
//
// It can also apply the rotary position embedding to keys while they are stored, and to queries.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/rotation.glsl>
#include <attention/cache.glsl>
#include <attention/sizes.glsl>
#include <attention/pools.glsl>

layout(constant_id = 24) const bool ROTATES = false;
layout(constant_id = 25) const uint PAIRS = 1;             // of a head that are rotated; the rest is copied
layout(constant_id = 26) const uint DISTANCE = 1;          // between the values of a pair; as many pairs follow one another

layout(push_constant, scalar) uniform Push {
    Floats key;
    Floats value;
    uint64_t key_cache;
    uint64_t value_cache;
    Floats query;
    Floats rotated_query;
    Floats frequencies;
    Step step;
    uint n_kv_heads;
    uint n_heads;
    float magnitude;
};

// Quads of a group of values, and the maximum over all types of cache.
const uint OWN_QUADS = VALUES_TOGETHER / 4;
const uint MOST_QUADS = 8;

// Whether quads are loaded whole, so that their loads are under way at once: none is partly rotated, and the other values of its
// pairs are a quad too.
bool has_whole_quads() {
    if (KEY_DIM % 4 > 0 || VALUE_DIM % 4 > 0) return false;
    if (ROTATES) return DISTANCE == 1 ? PAIRS % 2 == 0 : DISTANCE % 4 == 0;
    return true;
}

uint row;
uint position;

// A rotated value of the head that starts at `start`.
float rotated_value(Floats x, uint start, uint column) {
    uint run = column / (2 * DISTANCE);
    uint pair = run * DISTANCE + column % DISTANCE;
    uint first = pair + run * DISTANCE;
    vec2 values = vec2(x.at[start + first], x.at[start + first + DISTANCE]);
    vec2 rotated = rotate(values, rope_position(step, row, pair), frequencies.at[pair], magnitude);
    return column == first ? rotated.x : rotated.y;
}

// Four values that start at a multiple of four.
vec4 load_whole(Floats x, uint start) {
    return FloatQuads(uint64_t(x)).at[start / 4];
}

// Four rotated values of the head that starts at `start`.
vec4 rotated_quad(Floats x, uint start, uint column) {
    if (DISTANCE == 1) {
        vec4 pairs = load_whole(x, start + column);
        vec2 of_pairs = uintBitsToFloat(WordPairs(uint64_t(frequencies)).at[column / 4]);
        vec2 first = rotate(pairs.xy, rope_position(step, row, column / 2), of_pairs.x, magnitude);
        return vec4(first, rotate(pairs.zw, rope_position(step, row, column / 2 + 1), of_pairs.y, magnitude));
    }
    uint run = column / (2 * DISTANCE);
    uint pair = run * DISTANCE + column % DISTANCE;
    vec4 first = load_whole(x, start + pair + run * DISTANCE);
    vec4 second = load_whole(x, start + pair + (run + 1) * DISTANCE);
    vec4 of_pairs = load_whole(frequencies, pair);
    vec4 quad;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec2 rotated = rotate(vec2(first[i], second[i]), rope_position(step, row, pair + i), of_pairs[i], magnitude);
        quad[i] = column % (2 * DISTANCE) < DISTANCE ? rotated.x : rotated.y;
    }
    return quad;
}

// Four values of a head of `dim` values, the first `turned` of which are rotated; zeros after its end.
vec4 load_quad(Floats x, uint start, uint column, uint dim, uint turned) {
    if (has_whole_quads()) {
        if (column < turned) return rotated_quad(x, start, column);
        return column < dim ? load_whole(x, start + column) : vec4(0.0);
    }
    vec4 quad = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (column + i < turned) {
            quad[i] = rotated_value(x, start, column + i);
        } else if (column + i < dim) {
            quad[i] = x.at[start + column + i];
        }
    }
    return quad;
}

void store_in_8_bits(uint64_t record, uint stride, uvec2 slots, uint group, vec4 quads[MOST_QUADS]) {
    vec4 largest = vec4(0.0);
    [[unroll]] for (uint q = 0; q < OWN_QUADS; q++) largest = max(largest, abs(quads[q]));
    float scale = max(max(largest.x, largest.y), max(largest.z, largest.w)) / 127.0;
    float inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    Words words = Words(record + slots.y * stride + group * 32);
    [[unroll]] for (uint q = 0; q < OWN_QUADS; q++) {
        uvec4 codes = uvec4(ivec4(round(clamp(quads[q] * inverse, -127.0, 127.0)))) & 255u;
        words.at[q] = codes.x | codes.y << 8 | codes.z << 16 | codes.w << 24;
    }
    Halves(scale_address(record, stride, slots.x, slots.y, group)).at[0] = float16_t(scale);
}

// Stores a group of the keys or of the values: `index` counts the groups of a row. A record has `slots.x` slots, of which the row
// has `slots.y`.
void store(Floats x, uint64_t cache, uint dim, uint stride, uint turned, uint index, uvec2 slots) {
    uint groups = stride / VALUES_TOGETHER;
    uint head = index / groups;
    uint group = index % groups;
    uint start = (row * n_kv_heads + head) * dim;
    vec4 quads[MOST_QUADS];
    [[unroll]] for (uint q = 0; q < OWN_QUADS; q++) {
        quads[q] = load_quad(x, start, group * VALUES_TOGETHER + 4 * q, dim, turned);
    }
    uint block = step.tables.at[table_start_of(step, row) + position / BLOCK_TOKENS];
    uint64_t record = cache + (uint64_t(block) * n_kv_heads + head) * record_bytes(stride, slots.x);
    if (KV_TYPE == 2) {
        store_in_8_bits(record, stride, slots, group, quads);
        return;
    }
    [[unroll]] for (uint q = 0; q < OWN_QUADS; q++) {
        uint entry = slots.y * (stride / 4) + group * OWN_QUADS + q;
        if (KV_TYPE == 0) {
            FloatQuads(record).at[entry] = quads[q];
        } else {
            WordPairs(record).at[entry] = uvec2(packHalf2x16(quads[q].xy), packHalf2x16(quads[q].zw));
        }
    }
}

void rotate_query(uint index) {
    uint groups = KEY_STRIDE / VALUES_TOGETHER;
    uint start = (row * n_heads + index / groups) * KEY_DIM;
    uint first = index % groups * VALUES_TOGETHER;
    [[unroll]] for (uint q = 0; q < OWN_QUADS; q++) {
        uint column = first + 4 * q;
        vec4 quad = load_quad(query, start, column, KEY_DIM, 2 * PAIRS);
        if (has_whole_quads()) {
            if (column < KEY_DIM) FloatQuads(uint64_t(rotated_query)).at[(start + column) / 4] = quad;
            continue;
        }
        [[unroll]] for (uint i = 0; i < 4; i++) if (column + i < KEY_DIM) rotated_query.at[start + column + i] = quad[i];
    }
}

void main() {
    row = gl_WorkGroupID.y;
    if (row >= step.rows) return;
    position = step.positions.at[row];
    uint index = gl_GlobalInvocationID.x;
    uint of_keys = n_kv_heads * (KEY_STRIDE / VALUES_TOGETHER);
    uint of_values = VALUES_IN_KEYS && POOL == 0 ? 0 : n_kv_heads * (VALUE_STRIDE / VALUES_TOGETHER);
    uint of_queries = ROTATES ? n_heads * (KEY_STRIDE / VALUES_TOGETHER) : 0;
    uvec2 slots = uvec2(BLOCK_TOKENS, position % BLOCK_TOKENS);
    if (index < of_keys) {
        store(key, key_cache, KEY_DIM, KEY_STRIDE, ROTATES ? 2 * PAIRS : 0, index, slots);
    } else if (index - of_keys < of_values) {
        // Of entries only that of the last row of a pool is stored.
        if (POOL > 0 && (position + 1) % max(POOL, 1) != 0) return;
        if (POOL > 0) slots = uvec2(ENTRY_SLOTS, entry_slot(slots.y));
        store(value, value_cache, VALUE_DIM, VALUE_STRIDE, 0, index - of_keys, slots);
    } else if (index - of_keys - of_values < of_queries) {
        rotate_query(index - of_keys - of_values);
    }
}
