// Keys and values on a device, in the layout of `kv/device.rs`. One record for each KV head of each block: [16
// positions, stride] values; in 8 bits, [16 positions, stride / 32] scales follow the codes. Keys and values have
// different strides, which are constants in every call of these functions.

#extension GL_EXT_shader_16bit_storage : require

layout(constant_id = 20) const uint KV_TYPE = 1; // 0: float32, 1: float16, 2: 8 bits and a scale for 32 values
layout(constant_id = 35) const bool WINDOWED = false; // the layer keeps the positions of windows

const uint BLOCK_TOKENS = 16;
const uint VALUES_TOGETHER = KV_TYPE == 2 ? 32 : 8; // stored by one invocation

layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { float16_t at[]; };

// Bytes of a record of some slots.
uint record_bytes(uint stride, uint slots) {
    return slots * stride * (KV_TYPE == 0 ? 4 : KV_TYPE == 1 ? 2 : 1) + (KV_TYPE == 2 ? slots * (stride / 16) : 0);
}

// The address of the scale of 32 values of a head at a position.
uint64_t scale_address(uint64_t record, uint stride, uint slots, uint slot, uint group) {
    return record + slots * stride + (slot * (stride / 32) + group) * 2;
}

vec4 values_of_codes(int codes) {
    return vec4(bitfieldExtract(codes, 0, 8), bitfieldExtract(codes, 8, 8), bitfieldExtract(codes, 16, 8),
                bitfieldExtract(codes, 24, 8));
}

// Four values of a slot of a record of some slots.
vec4 load_cached(uint64_t record, uint stride, uint slots, uint slot, uint quad) {
    uint index = slot * (stride / 4) + quad;
    if (KV_TYPE == 0) return FloatQuads(record).at[index];
    if (KV_TYPE == 1) {
        uvec2 words = WordPairs(record).at[index];
        return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    }
    int codes = int(Words(record).at[index]);
    float scale = float(Halves(scale_address(record, stride, slots, slot, quad / 8)).at[0]);
    return scale * values_of_codes(codes);
}

// Four values of the head at a position of its block.
vec4 load_cached(uint64_t record, uint stride, uint slot, uint quad) {
    return load_cached(record, stride, BLOCK_TOKENS, slot, quad);
}

// Eight values of a head at a position as they are stored, so that they can be loaded long before they are used: the second
// half only for float32. In 8 bits, codes and then their scale.
struct Octet {
    uvec4 first;
    uvec4 second;
};

Octet load_octet(uint64_t record, uint stride, uint slots, uint slot, uint octet) {
    uint index = slot * (stride / 8) + octet;
    if (KV_TYPE == 0) return Octet(WordQuads(record).at[2 * index], WordQuads(record).at[2 * index + 1]);
    if (KV_TYPE == 1) return Octet(WordQuads(record).at[index], uvec4(0));
    uvec2 codes = WordPairs(record).at[index];
    float scale = float(Halves(scale_address(record, stride, slots, slot, octet / 4)).at[0]);
    return Octet(uvec4(codes, floatBitsToUint(scale), 0), uvec4(0));
}

// The values of an octet: the first four, or the last.
vec4 octet_values(Octet octet, uint half_index) {
    if (KV_TYPE == 0) return uintBitsToFloat(half_index == 0 ? octet.first : octet.second);
    if (KV_TYPE == 1) {
        uvec2 words = half_index == 0 ? octet.first.xy : octet.first.zw;
        return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    }
    int codes = int(half_index == 0 ? octet.first.x : octet.first.y);
    return uintBitsToFloat(octet.first.z) * values_of_codes(codes);
}

// Where the tables have the blocks of a row's sequence in the layer.
uint table_start_of(Step step, uint row) {
    return step.table_starts.at[2 * step.sequences.at[row] + uint(WINDOWED)];
}

// The address of the record of a KV head that holds a position of a sequence.
uint64_t record_of(uint64_t cache, uint stride, Step step, uint table_start, uint position, uint n_kv_heads, uint kv_head) {
    uint block = step.tables.at[table_start + position / BLOCK_TOKENS];
    return cache + (uint64_t(block) * n_kv_heads + kv_head) * record_bytes(stride, BLOCK_TOKENS);
}
