// A weight matrix as `gpu/weight.rs` packs it: runs of 32 columns, split into bit planes.
//
// Specialisation constants describe the format (see `WeightLayout`). A format that has an `IntegerLayout` needs no code
// here.

layout(constant_id = 10) const uint BITS = 32;        // of a code; 16 and 32 are floating-point formats
layout(constant_id = 11) const uint OFFSET = 0;       // the code that represents zero
layout(constant_id = 12) const uint GROUPS = 1;       // scale groups in a run
layout(constant_id = 13) const bool GROUP_SCALES = false;
layout(constant_id = 14) const bool MINIMUM = false;
layout(constant_id = 15) const bool BFLOAT = false;
layout(constant_id = 40) const bool POWERS_OF_TWO = false; // units are stored as exponents
layout(constant_id = 41) const bool CODEBOOK = false;      // codes are codebook indices
layout(constant_id = 42) const uint BOOK_0 = 0;            // the codebook: one signed byte for each of sixteen codes
layout(constant_id = 43) const uint BOOK_4 = 0;
layout(constant_id = 44) const uint BOOK_8 = 0;
layout(constant_id = 45) const uint BOOK_12 = 0;

const uint QUADS = 8;                                 // groups of four columns in a run
const uint LOW_BITS = BITS == 6 || BITS == 5 ? 4 : BITS == 3 ? 2 : BITS;
const uint HIGH_BITS = BITS - LOW_BITS;
const uint RUNS_PER_BLOCK = GROUP_SCALES ? 8 : 1;
const uint SCALE_BITS = GROUP_SCALES ? GROUPS * (MINIMUM ? 16 : 8) : 0;
const uint UNIT_BITS = POWERS_OF_TWO ? 8 : MINIMUM ? 32 : 16;

struct Matrix {
    uint64_t low;     // low bits of the codes, or values
    uint64_t high;    // high bits of the codes
    uint64_t scales;
    uint64_t units;
};

// 32 columns of a row: value[c] = scale * code[c] + minimum, with the scale and minimum of the group of c. `codes` has
// the offset subtracted, or the codebook applied.
struct Run {
    vec4 codes[QUADS];
    float scale[2];
    float minimum[2];
};

vec4 bytes_to_floats(uint word) {
    return vec4(uvec4(word, word >> 8, word >> 16, word >> 24) & 255u);
}

// The codebook entries of four codes. Entries are selected and not indexed, because some compilers move an indexed
// table to memory.
vec4 look_up(uint codes) {
    uvec4 code = uvec4(codes, codes >> 8, codes >> 16, codes >> 24);
    bvec4 by_4 = notEqual(code & 4u, uvec4(0));
    bvec4 by_8 = notEqual(code & 8u, uvec4(0));
    uvec4 low = mix(uvec4(BOOK_0), uvec4(BOOK_4), by_4);
    uvec4 high = mix(uvec4(BOOK_8), uvec4(BOOK_12), by_4);
    // Move the byte to the top, then shift it down with sign extension.
    ivec4 moved = ivec4(mix(low, high, by_8) << (24u - 8u * (code & 3u)));
    return vec4(moved >> 24);
}

// Entry `index` of a plane of entries with `bits` bits.
uint entry(uint64_t plane, uint64_t index, uint bits) {
    uint word = Words(plane + (index * bits >> 5) * 4).at[0];
    return bits == 32 ? word : bitfieldExtract(word, int(uint(index) * bits & 31u), int(bits));
}

float signed_byte(uint word, uint index) {
    return float(bitfieldExtract(int(word), int(8 * index), 8));
}

void load_values(Matrix matrix, uint64_t index, inout Run run) {
    if (BITS == 32) {
        FloatQuads source = FloatQuads(matrix.low + index * 128);
        [[unroll]] for (uint q = 0; q < QUADS; q++) run.codes[q] = source.at[q];
        return;
    }
    WordQuads source = WordQuads(matrix.low + index * 64);
    [[unroll]] for (uint q = 0; q < QUADS; q += 2) {
        uvec4 words = source.at[q / 2];
        if (BFLOAT) {
            run.codes[q] = uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
            run.codes[q + 1] =
                uintBitsToFloat(uvec4(words.z << 16, words.z & 0xffff0000u, words.w << 16, words.w & 0xffff0000u));
        } else {
            run.codes[q] = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
            run.codes[q + 1] = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
        }
    }
}

// A plane of p bits has p words for a run. Quad q is in word q mod p, starting at bit q / p * p of each byte.
void load_codes(Matrix matrix, uint64_t index, inout Run run) {
    uint low[8];
    if (LOW_BITS == 2) {
        uvec2 words = WordPairs(matrix.low + index * 8).at[0];
        low[0] = words.x;
        low[1] = words.y;
    } else {
        WordQuads source = WordQuads(matrix.low + index * (4 * LOW_BITS));
        [[unroll]] for (uint i = 0; i < LOW_BITS / 4; i++) {
            uvec4 words = source.at[i];
            low[4 * i] = words.x;
            low[4 * i + 1] = words.y;
            low[4 * i + 2] = words.z;
            low[4 * i + 3] = words.w;
        }
    }
    uint high[2];
    if (HIGH_BITS == 1) {
        high[0] = Words(matrix.high + index * 4).at[0];
    } else if (HIGH_BITS == 2) {
        uvec2 words = WordPairs(matrix.high + index * 8).at[0];
        high[0] = words.x;
        high[1] = words.y;
    }
    const uint low_mask = (LOW_BITS == 8 ? 0xffu : (1u << LOW_BITS) - 1u) * 0x01010101u;
    const uint high_mask = ((1u << HIGH_BITS) - 1u) * 0x01010101u;
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uint codes = low[q % LOW_BITS] >> (q / LOW_BITS * LOW_BITS) & low_mask;
        if (HIGH_BITS > 0) {
            const uint planes = max(HIGH_BITS, 1u);
            codes |= (high[q % planes] >> (q / planes * planes) & high_mask) << LOW_BITS;
        }
        run.codes[q] = CODEBOOK ? look_up(codes) : bytes_to_floats(codes) - float(OFFSET);
    }
}

// 2^(exponent - 128).
float power_of_two(uint exponent) {
    return uintBitsToFloat(exponent < 2 ? 0x00200000u << exponent : exponent - 1 << 23);
}

void load_scales(Matrix matrix, uint64_t index, inout Run run) {
    uint stored = entry(matrix.units, index / RUNS_PER_BLOCK, UNIT_BITS);
    vec2 unit = POWERS_OF_TWO ? vec2(power_of_two(stored), 0.0) : unpackHalf2x16(stored);
    if (!GROUP_SCALES) {
        run.scale[0] = unit.x;
        run.minimum[0] = MINIMUM ? unit.y : 0.0;
        return;
    }
    uint scales = entry(matrix.scales, index, SCALE_BITS);
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        run.scale[g] = unit.x * signed_byte(scales, g);
        run.minimum[g] = MINIMUM ? unit.y * signed_byte(scales, GROUPS + g) : 0.0;
    }
}

// Run `index` of the matrix. Runs are numbered through all rows.
Run load_run(Matrix matrix, uint64_t index) {
    Run run;
    if (BITS >= 16) {
        load_values(matrix, index, run);
        run.scale[0] = 1.0;
        run.minimum[0] = 0.0;
    } else {
        load_codes(matrix, index, run);
        load_scales(matrix, index, run);
    }
    return run;
}

// The group of a quad.
uint group_of(uint q) {
    return q * GROUPS / QUADS;
}

// Four values of a run.
vec4 values(Run run, uint q) {
    uint g = group_of(q);
    return MINIMUM ? fma(vec4(run.scale[g]), run.codes[q], vec4(run.minimum[g])) : run.scale[g] * run.codes[q];
}
