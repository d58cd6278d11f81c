// A weight matrix as `gpu/weight.rs` packs it: runs of 32 columns, split into bit planes.
//
// Specialisation constants describe the format (see `WeightLayout`). A format that has an `IntegerLayout` needs no code
// here. The values of a grid are decoded from the table of its cells, which precedes the planes.

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

layout(constant_id = 46) const uint RUNS_PER_BLOCK = 1;    // runs that share a unit
layout(constant_id = 47) const uint UNIT_SHIFT = 0;        // a stored unit is 2^UNIT_SHIFT units
layout(constant_id = 48) const uint CELL_LEN = 0;          // columns of a cell: 4 or 8; 0 without a grid
layout(constant_id = 49) const uint INDEX_HIGH_BITS = 0;   // bits of an index beyond eight
layout(constant_id = 50) const bool CELLS_HAVE_SIGNS = false; // a bit for each value, or the highest bit of an index
layout(constant_id = 51) const uint CELLS = 1;             // of the grid, a power of two
layout(constant_id = 52) const bool FLOAT8_SCALES = false; // scales of groups have 4 exponent bits and 3 fraction bits
layout(constant_id = 53) const uint FLOAT_CODES = 0;       // codes of numbers with float32 units: 1 as FLOAT8_SCALES with a sign, 2 NF4
layout(constant_id = 54) const bool ZERO_POINTS = false;   // a byte for each run, which is subtracted from its codes

const bool FLOAT_UNITS = FLOAT_CODES > 0;
const uint QUADS = 8;                                 // groups of four columns in a run
const uint LOW_BITS = BITS == 6 || BITS == 5 ? 4 : BITS == 3 ? 2 : BITS;
const uint HIGH_BITS = BITS - LOW_BITS;
const uint SCALE_BITS = ZERO_POINTS ? 8 : GROUP_SCALES ? GROUPS * (MINIMUM ? 16 : 8) : 0;
const uint UNIT_BITS = POWERS_OF_TWO ? 8 : MINIMUM || FLOAT_UNITS ? 32 : 16;

struct Matrix {
    uint64_t low;     // low bits of the codes, or values
    uint64_t high;    // high bits of the codes
    uint64_t scales;
    uint64_t units;
};

// The words of a run as they are stored. Loading them early costs fewer registers than decoding early.
const uint CELLS_OF_RUN = CELL_LEN == 8 ? 4 : 8;
const uint LOW_WORDS = CELL_LEN > 0 ? CELLS_OF_RUN / 4 : LOW_BITS;
struct Packed {
    uint low[32];      // the first LOW_WORDS
    uint high[2];
    uint scales;      // words that contain the scales and the unit
    uint unit;
};

// 32 columns of a row: value[c] = scale * code[c] + minimum, with the scale and minimum of the group of c. `codes` has
// the offset and the zero point subtracted, or the codebook applied.
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

// The word that contains entry `index` of a plane of entries with `bits` bits.
uint word_of_entry(uint64_t plane, uint64_t index, uint bits) {
    return Words(plane + (index * bits >> 5) * 4).at[0];
}

uint entry_of_word(uint word, uint64_t index, uint bits) {
    return bits == 32 ? word : bitfieldExtract(word, int(uint(index) * bits & 31u), int(bits));
}

uint entry(uint64_t plane, uint64_t index, uint bits) {
    return entry_of_word(word_of_entry(plane, index, bits), index, bits);
}

float signed_byte(uint word, uint index) {
    return float(bitfieldExtract(int(word), int(8 * index), 8));
}

void load_quads(uint64_t address, inout Packed packed) {
    WordQuads source = WordQuads(address);
    [[unroll]] for (uint i = 0; i < LOW_WORDS / 4; i++) {
        uvec4 words = source.at[i];
        packed.low[4 * i] = words.x;
        packed.low[4 * i + 1] = words.y;
        packed.low[4 * i + 2] = words.z;
        packed.low[4 * i + 3] = words.w;
    }
}

void unpack_values(Packed packed, inout Run run) {
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        if (BITS == 32) {
            uvec4 words = uvec4(packed.low[4 * q], packed.low[4 * q + 1], packed.low[4 * q + 2], packed.low[4 * q + 3]);
            run.codes[q] = uintBitsToFloat(words);
        } else if (BFLOAT) {
            uvec2 words = uvec2(packed.low[2 * q], packed.low[2 * q + 1]);
            run.codes[q] = uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
        } else {
            run.codes[q] = vec4(unpackHalf2x16(packed.low[2 * q]), unpackHalf2x16(packed.low[2 * q + 1]));
        }
    }
}

// The codes of four values, a byte each, from consecutive bits.
uint spread(uint codes) {
    const uint mask = (1u << BITS) - 1u;
    return (codes & mask) | (codes >> BITS & mask) << 8 | (codes >> 2 * BITS & mask) << 16 | (codes >> 3 * BITS & mask) << 24;
}

// A run has one or two words with the low bits of its indices. In the plane of high bits each block has the signs of its
// runs, then the high bits of all its indices.
void load_cells(Matrix matrix, uint64_t index, inout Packed packed) {
    const uint index_bits = CELLS_OF_RUN * INDEX_HIGH_BITS; // of a run
    const uint sign_words = CELLS_HAVE_SIGNS ? RUNS_PER_BLOCK : 0;
    const uint block_words = sign_words + RUNS_PER_BLOCK * index_bits / 32;
    [[unroll]] for (uint i = 0; i < LOW_WORDS; i++) packed.low[i] = Words(matrix.low + index * CELLS_OF_RUN).at[i];
    uint run_of_block = uint(index % RUNS_PER_BLOCK);
    Words block = Words(matrix.high + index / RUNS_PER_BLOCK * (4 * block_words));
    packed.high[0] = CELLS_HAVE_SIGNS ? block.at[run_of_block] : 0;
    packed.high[1] = INDEX_HIGH_BITS > 0 ? block.at[sign_words + run_of_block * index_bits / 32] : 0;
}

void unpack_cells(Matrix matrix, uint64_t index, Packed packed, inout Run run) {
    const uint index_bits = CELLS_OF_RUN * INDEX_HIGH_BITS;
    uint signs = packed.high[0];
    uint high = packed.high[1] >> (uint(index % RUNS_PER_BLOCK) * index_bits & 31u);
    uint64_t table = matrix.low - 2 * CELLS;
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uint c = q * 4 / max(CELL_LEN, 4u);
        uint cell = packed.low[c / 4] >> (c % 4 * 8) & 255u;
        if (INDEX_HIGH_BITS > 0) cell |= (high >> (c * INDEX_HIGH_BITS) & ((1u << INDEX_HIGH_BITS) - 1u)) << 8;
        uint codes = entry(table, uint64_t(cell & (CELLS - 1)), 16);
        if (CELL_LEN == 8 && q % 2 == 1) codes >>= 8;
        vec4 code = look_up(spread(codes));
        if (CELLS_HAVE_SIGNS) {
            uvec4 negative = uvec4(signs >> 4 * q, signs >> (4 * q + 1), signs >> (4 * q + 2), signs >> (4 * q + 3)) << 31;
            run.codes[q] = uintBitsToFloat(floatBitsToUint(code) ^ negative);
        } else {
            run.codes[q] = cell >= CELLS ? code - 2.0 : code;
        }
    }
}

// Four codes of 8 bits in floating point as float16: their numbers divided by 256, because the exponents have other biases.
// The code of no number, 127, gives NaN.
vec4 float8_values(uint word) {
    uvec2 pairs = uvec2(word, word >> 8);
    uvec2 magnitude = pairs & 0x007f007fu;
    uvec2 no_number = magnitude + 0x00010001u & 0x00800080u;
    uvec2 halves = (pairs & 0x00800080u) << 8 | (magnitude | no_number) << 7;
    vec2 even = unpackHalf2x16(halves.x);
    vec2 odd = unpackHalf2x16(halves.y);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// The numbers of NF4 by their codes, as in `nf4.rs`.
const float NORMAL_FLOATS[16] = float[16](
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0);

// Four numbers of NF4. Numbers are selected and not indexed, as in `look_up`.
vec4 normal_floats(uint codes) {
    uvec4 code = uvec4(codes, codes >> 8, codes >> 16, codes >> 24);
    bvec4 by_1 = notEqual(code & 1u, uvec4(0));
    bvec4 by_2 = notEqual(code & 2u, uvec4(0));
    bvec4 by_4 = notEqual(code & 4u, uvec4(0));
    vec4 half_of[2];
    [[unroll]] for (uint h = 0; h < 2; h++) {
        vec4 pair[4];
        [[unroll]] for (uint p = 0; p < 4; p++) {
            pair[p] = mix(vec4(NORMAL_FLOATS[8 * h + 2 * p]), vec4(NORMAL_FLOATS[8 * h + 2 * p + 1]), by_1);
        }
        half_of[h] = mix(mix(pair[0], pair[1], by_2), mix(pair[2], pair[3], by_2), by_4);
    }
    return mix(half_of[0], half_of[1], notEqual(code & 8u, uvec4(0)));
}

// The codes of a run as they are stored, and what is subtracted from each.
struct Codes {
    uint low[8];
    uint high[2];
    int offset;
};

// A plane of p bits has p words for a run. Quad q is in word q mod p, starting at bit q / p * p of each byte.
void load_codes(Matrix matrix, uint64_t index, inout Packed packed) {
    if (LOW_BITS == 1) {
        packed.low[0] = Words(matrix.low + index * 4).at[0];
    } else if (LOW_BITS == 2) {
        uvec2 words = WordPairs(matrix.low + index * 8).at[0];
        packed.low[0] = words.x;
        packed.low[1] = words.y;
    } else {
        load_quads(matrix.low + index * (4 * LOW_BITS), packed);
    }
    if (HIGH_BITS == 1) {
        packed.high[0] = Words(matrix.high + index * 4).at[0];
    } else if (HIGH_BITS == 2) {
        uvec2 words = WordPairs(matrix.high + index * 8).at[0];
        packed.high[0] = words.x;
        packed.high[1] = words.y;
    }
}

Codes codes_of(uint64_t index, Packed packed) {
    Codes codes;
    [[unroll]] for (uint i = 0; i < 8; i++) codes.low[i] = packed.low[i];
    codes.high = packed.high;
    codes.offset = int(OFFSET);
    if (ZERO_POINTS) codes.offset += bitfieldExtract(int(entry_of_word(packed.scales, index, SCALE_BITS)), 0, 8);
    return codes;
}

// Four codes, a byte each.
uint code_quad(Codes codes, uint q) {
    const uint low_mask = (LOW_BITS == 8 ? 0xffu : (1u << LOW_BITS) - 1u) * 0x01010101u;
    const uint high_mask = ((1u << HIGH_BITS) - 1u) * 0x01010101u;
    uint quad = codes.low[q % LOW_BITS] >> (q / LOW_BITS * LOW_BITS) & low_mask;
    if (HIGH_BITS > 0) {
        const uint planes = max(HIGH_BITS, 1u);
        quad |= (codes.high[q % planes] >> (q / planes * planes) & high_mask) << LOW_BITS;
    }
    return quad;
}

void unpack_codes(uint64_t index, Packed packed, inout Run run) {
    Codes codes = codes_of(index, packed);
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uint quad = code_quad(codes, q);
        if (FLOAT_CODES == 1) {
            run.codes[q] = float8_values(quad);
        } else if (FLOAT_CODES == 2) {
            run.codes[q] = normal_floats(quad);
        } else {
            run.codes[q] = CODEBOOK ? look_up(quad) : bytes_to_floats(quad) - float(codes.offset);
        }
    }
}

// 2^(exponent - 128).
float power_of_two(uint exponent) {
    return uintBitsToFloat(exponent < 2 ? 0x00200000u << exponent : exponent - 1 << 23);
}

// The number in byte `index` of a word: 4 exponent bits and 3 fraction bits.
float float8(uint word, uint index) {
    uint stored = bitfieldExtract(word, int(8 * index), 8);
    uint exponent = bitfieldExtract(stored, 3, 4);
    // Not by a float32 of the same bits: devices may take its smallest values for 0.
    float fraction = float((stored & 7u) + (exponent > 0u ? 8u : 0u));
    return stored == 127u ? 0.0 : fraction * uintBitsToFloat((127u - 10u + max(exponent, 1u)) << 23);
}

void unpack_scales(uint64_t index, Packed packed, inout Run run) {
    uint stored = entry_of_word(packed.unit, index / RUNS_PER_BLOCK, UNIT_BITS);
    vec2 unit = FLOAT_UNITS     ? vec2((FLOAT_CODES == 1 ? 256.0 : 1.0) * uintBitsToFloat(stored), 0.0)
                : POWERS_OF_TWO ? vec2(power_of_two(stored), 0.0)
                                : unpackHalf2x16(stored);
    if (UNIT_SHIFT > 0) unit /= float(1u << UNIT_SHIFT);
    if (!GROUP_SCALES) {
        run.scale[0] = unit.x;
        run.minimum[0] = MINIMUM ? unit.y : 0.0;
        return;
    }
    uint scales = entry_of_word(packed.scales, index, SCALE_BITS);
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        run.scale[g] = unit.x * (FLOAT8_SCALES ? float8(scales, g) : signed_byte(scales, g));
        run.minimum[g] = MINIMUM ? unit.y * signed_byte(scales, GROUPS + g) : 0.0;
    }
}

void load_scale_words(Matrix matrix, uint64_t index, inout Packed packed) {
    packed.unit = word_of_entry(matrix.units, index / RUNS_PER_BLOCK, UNIT_BITS);
    if (GROUP_SCALES || ZERO_POINTS) packed.scales = word_of_entry(matrix.scales, index, SCALE_BITS);
}

// Run `index` of the matrix as it is stored. Runs are numbered through all rows.
Packed load_packed(Matrix matrix, uint64_t index) {
    Packed packed;
    if (BITS >= 16) {
        load_quads(matrix.low + index * (4 * LOW_WORDS), packed);
        return packed;
    }
    if (CELL_LEN > 0) {
        load_cells(matrix, index, packed);
    } else {
        load_codes(matrix, index, packed);
    }
    load_scale_words(matrix, index, packed);
    return packed;
}

// Decodes a run that `load_packed` has loaded from `index`.
Run unpack(Matrix matrix, uint64_t index, Packed packed) {
    Run run;
    if (BITS >= 16) {
        unpack_values(packed, run);
        run.scale[0] = 1.0;
        run.minimum[0] = 0.0;
        return run;
    }
    if (CELL_LEN > 0) {
        unpack_cells(matrix, index, packed, run);
    } else {
        unpack_codes(index, packed, run);
    }
    unpack_scales(index, packed, run);
    return run;
}

Run load_run(Matrix matrix, uint64_t index) {
    return unpack(matrix, index, load_packed(matrix, index));
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
