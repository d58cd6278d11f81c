// Weights as float16, in the order of the columns of `halves.glsl`.

#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <matmul/halves.glsl>

// Small integers are decoded in float16, two at a time, as multiples of 1/16: float16 has fewer bits for numbers below 2^-14, which
// scales often are. Weights of models do not use the numbers from 4096 on, which become infinite.
const bool SMALL_INTEGERS = BITS < 16 && CELL_LEN == 0 && FLOAT_CODES == 0 && !CODEBOOK;
const float WEIGHT_UNIT = SMALL_INTEGERS ? 1.0 / 16.0 : 1.0;

// Two codes, the bytes 0 and 2 of a word. Float16 numbers from 1024 on have a step of 1, so the lowest bits of 1024 + c are c.
f16vec2 numbers_of(uint codes, f16vec2 offset) {
    return unpackFloat2x16(codes & 0x00ff00ffu | 0x64006400u) - offset;
}

// The eight weights of the quads 2 `octet` and 2 `octet` + 1. Float32, bfloat16 and numbers with a float32 scale have a wider range
// than float16, but the weights of models do not use it.
uvec4 octet_of_values(Run run, uint octet) {
    vec4 first = values(run, 2 * octet);
    vec4 second = values(run, 2 * octet + 1);
    if (BITS == 32 || BFLOAT || FLOAT_UNITS) {
        first = clamp(first, -65504.0, 65504.0);
        second = clamp(second, -65504.0, 65504.0);
    }
    return pack_columns(first, second);
}

// The 32 weights of a run that `load_packed` has loaded from `index`, in units of WEIGHT_UNIT.
void decode_run(Matrix matrix, uint64_t index, Packed packed, out uvec4 octets[4]) {
    if (!SMALL_INTEGERS) {
        Run run = unpack(matrix, index, packed);
        [[unroll]] for (uint i = 0; i < 4; i++) octets[i] = octet_of_values(run, i);
        return;
    }
    Run scales;
    unpack_scales(index, packed, scales);
    Codes codes = codes_of(index, packed);
    // Codes are counted from their middle: a minimum would be rounded more coarsely than the weights near zero.
    const uint middle = MINIMUM ? 1u << BITS - 1u : 0u;
    f16vec2 offset = f16vec2(float16_t(1024 + codes.offset + int(middle)));
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uint g = group_of(q);
        float unit_scale = scales.scale[g] / WEIGHT_UNIT;
        f16vec2 scale = f16vec2(float16_t(unit_scale));
        float unit_minimum = MINIMUM ? fma(float(middle), unit_scale, scales.minimum[g] / WEIGHT_UNIT) : 0.0;
        f16vec2 minimum = f16vec2(float16_t(unit_minimum));
        uint quad = code_quad(codes, q);
        f16vec2 even = numbers_of(quad, offset);
        f16vec2 odd = numbers_of(quad >> 8, offset);
        octets[q / 2][q % 2 * 2] = packFloat2x16(MINIMUM ? fma(even, scale, minimum) : even * scale);
        octets[q / 2][q % 2 * 2 + 1] = packFloat2x16(MINIMUM ? fma(odd, scale, minimum) : odd * scale);
    }
}
