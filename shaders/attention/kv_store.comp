#version 460
// Stores the keys, or the values, of the step's rows: an invocation for each stretch of values of each head of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <attention/cache.glsl>

layout(constant_id = 21) const uint HEAD_DIM = 64; // of a key, or of a value

const uint STRIDE = (HEAD_DIM + VALUES_TOGETHER - 1) / VALUES_TOGETHER * VALUES_TOGETHER;

layout(push_constant, scalar) uniform Push {
    Floats x;
    uint64_t cache;
    Step step;
    uint n_kv_heads;
};

vec4 load_quad(uint start, uint column) {
    vec4 quad = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4; i++) if (column + i < HEAD_DIM) quad[i] = x.at[start + column + i];
    return quad;
}

void store_in_8_bits(uint64_t record, uint slot, uint start, uint stretch) {
    vec4 quads[8];
    vec4 largest = vec4(0.0);
    [[unroll]] for (uint q = 0; q < 8; q++) {
        quads[q] = load_quad(start, stretch * 32 + 4 * q);
        largest = max(largest, abs(quads[q]));
    }
    float scale = max(max(largest.x, largest.y), max(largest.z, largest.w)) / 127.0;
    float inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    Words words = Words(record + slot * STRIDE + stretch * 32);
    [[unroll]] for (uint q = 0; q < 8; q++) {
        uvec4 codes = uvec4(ivec4(round(clamp(quads[q] * inverse, -127.0, 127.0)))) & 255u;
        words.at[q] = codes.x | codes.y << 8 | codes.z << 16 | codes.w << 24;
    }
    Halves(scale_address(record, STRIDE, slot, stretch)).at[0] = float16_t(scale);
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint stretches = STRIDE / VALUES_TOGETHER;
    uint index = gl_GlobalInvocationID.x;
    if (row >= step.rows || index >= n_kv_heads * stretches) return;
    uint head = index / stretches;
    uint stretch = index % stretches;
    uint position = step.positions.at[row];
    uint table_start = step.table_starts.at[step.sequences.at[row]];
    uint64_t record = record_of(cache, STRIDE, step, table_start, position, n_kv_heads, head);
    uint slot = position % BLOCK_TOKENS;
    uint start = (row * n_kv_heads + head) * HEAD_DIM;
    if (KV_TYPE == 2) {
        store_in_8_bits(record, slot, start, stretch);
        return;
    }
    [[unroll]] for (uint q = 0; q < VALUES_TOGETHER / 4; q++) {
        vec4 quad = load_quad(start, stretch * VALUES_TOGETHER + 4 * q);
        uint place = slot * (STRIDE / 4) + stretch * (VALUES_TOGETHER / 4) + q;
        if (KV_TYPE == 0) {
            FloatQuads(record).at[place] = quad;
        } else {
            WordPairs(record).at[place] = uvec2(packHalf2x16(quad.xy), packHalf2x16(quad.zw));
        }
    }
}
