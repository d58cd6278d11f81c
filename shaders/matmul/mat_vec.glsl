// Results of few rows. A team of LANES invocations computes OUTPUTS results of each of ROWS rows, so that the rows share
// the unpacked weights. The teams of a workgroup compute results of the same rows, and share the inputs in shared memory:
// CHUNK_RUNS runs of each row at a time. There the stride of a run is an odd number of quads, so that lanes that read the
// same quad of adjacent runs access different banks.
//
// Lane l of a team adds the runs l, l + LANES, ... The sums of the lanes are added in a tree. So the bits of a result
// depend neither on the other rows nor on the number of rows, outputs or teams of a workgroup.
//
// If the weights are codes, the inputs are rounded to integers of 15 bits with a scale for each run, as the kernels of the
// CPU do (`matmul/integer/activations.rs`), so that the products of four bytes are one instruction. Float32 products would
// need three or four instructions for each weight, for which a GPU has no time when it reads codes of 4 bits.

#extension GL_EXT_integer_dot_product : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint ROWS = 1;
layout(constant_id = 2) const uint OUTPUTS = 4;
layout(constant_id = 4) const uint LANES = 32;
layout(constant_id = 5) const uint CHUNK_RUNS = 32;    // a multiple of LANES
layout(constant_id = 6) const uint SHARED_QUADS = 288; // for the inputs of a chunk, and later for the sums of all lanes

const uint TEAMS = WORKGROUP_SIZE / LANES;
const uint RUN_STRIDE = QUADS + 1;
const uint RESULTS = ROWS * OUTPUTS;

// The weights are codes, which are multiplied as integers.
const bool INTEGER = BITS < 16 && CELL_LEN == 0 && !FLOAT_UNITS;
// Codes of a codebook are made unsigned.
const uint BOOK_OFFSET = 128;

shared uvec4 chunk[SHARED_QUADS];

uint team = gl_LocalInvocationID.x / LANES;
uint lane = gl_LocalInvocationID.x % LANES;

float partial[RESULTS]; // the sums of this lane
Packed next[OUTPUTS];   // the weights that it multiplies next

// The including shader defines the rows of a workgroup and the outputs of a team.
bool has_row(uint r);
vec4 input_quad(uint r, uint column);
Matrix matrix_of(uint o);
uint64_t run_of(uint o, uint index);

// The first quad of a run of the chunk.
uint chunk_run(uint r, uint index) {
    return (r * CHUNK_RUNS + index) * RUN_STRIDE;
}

// Replaces the inputs of a run by integers of 15 bits: v = 128 high + low. The run has two quads of high bytes, two quads
// of low bytes, the scale, and the sum of the integers of each group.
void round_run(uint first) {
    const float LARGEST = 127.0 * 128.0;
    const float SMALLEST = 1e-30;
    // Adding it to an integer gives a number with that integer in the lowest bits.
    const float SHIFT = 12582912.0;
    vec4 x[QUADS];
    uint largest_bits = 0; // of a magnitude; those of NaN are larger than those of any number
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uvec4 bits = chunk[first + q];
        x[q] = uintBitsToFloat(bits);
        bits &= 0x7fffffffu;
        largest_bits = max(largest_bits, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    }
    float largest = uintBitsToFloat(largest_bits);
    bool is_usual = largest_bits < 0x7f800000u && largest >= SMALLEST;
    float inverse = is_usual ? LARGEST / largest : 0.0;
    uint high[QUADS];
    uint low[QUADS];
    int sums[2] = int[2](0, 0);
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        uvec4 v = floatBitsToUint(fma(x[q], vec4(inverse), vec4(SHIFT)));
        sums[group_of(q)] += int(v.x + v.y + v.z + v.w - 4 * floatBitsToUint(SHIFT));
        uvec2 pairs = (v.xy & 0xffffu) | v.zw << 16;
        uvec2 of_high = pairs >> 7 & 0x00ff00ffu;
        uvec2 of_low = pairs & 0x007f007fu;
        high[q] = of_high.x | of_high.y << 8;
        low[q] = of_low.x | of_low.y << 8;
    }
    chunk[first] = uvec4(high[0], high[1], high[2], high[3]);
    chunk[first + 1] = uvec4(high[4], high[5], high[6], high[7]);
    chunk[first + 2] = uvec4(low[0], low[1], low[2], low[3]);
    chunk[first + 3] = uvec4(low[4], low[5], low[6], low[7]);
    float scale = largest_bits < 0x7f800000u && !is_usual ? 0.0 : largest * (1.0 / LARGEST);
    chunk[first + 4] = uvec4(floatBitsToUint(scale), uint(sums[0]), uint(sums[1]), 0);
}

// Loads the inputs of the runs first..end. All invocations must call it.
void load_chunk(uint first, uint end) {
    uint quads = (end - first) * QUADS;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (!has_row(r)) continue;
        for (uint i = gl_LocalInvocationID.x; i < quads; i += WORKGROUP_SIZE) {
            chunk[chunk_run(r, i / QUADS) + i % QUADS] = floatBitsToUint(input_quad(r, first * 32 + 4 * i));
        }
    }
    barrier();
    if (!INTEGER) return;
    for (uint i = gl_LocalInvocationID.x; i < ROWS * (end - first); i += WORKGROUP_SIZE) {
        round_run(chunk_run(i / (end - first), i % (end - first)));
    }
    barrier();
}

// Four codes without sign, a byte each, from which `OFFSET`, or `BOOK_OFFSET`, is to be subtracted.
uint unsigned_codes(Codes codes, uint q) {
    uint quad = code_quad(codes, q);
    if (!CODEBOOK) return quad;
    uvec4 bytes = uvec4(ivec4(look_up(quad)) + int(BOOK_OFFSET));
    return bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
}

// Loads run `index` of the weights.
void load_next(uint index) {
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) next[o] = load_packed(matrix_of(o), run_of(o, index));
}

// Adds the products of run `index`, which is run `index_of_chunk` of the chunk and in `next`, as integers. Loads run
// `index_of_next` meanwhile.
void multiply_integers(uint index, uint index_of_chunk, uint index_of_next) {
    uint codes[OUTPUTS * QUADS];
    int offsets[OUTPUTS];
    Run scales[OUTPUTS];
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
        uint64_t run = run_of(o, index);
        unpack_scales(run, next[o], scales[o]);
        Codes stored = codes_of(run, next[o]);
        [[unroll]] for (uint q = 0; q < QUADS; q++) codes[o * QUADS + q] = unsigned_codes(stored, q);
        offsets[o] = CODEBOOK ? int(BOOK_OFFSET) : stored.offset;
    }
    load_next(index_of_next);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (!has_row(r)) continue;
        uint first = chunk_run(r, index_of_chunk);
        uvec4 high[2] = uvec4[2](chunk[first], chunk[first + 1]);
        uvec4 low[2] = uvec4[2](chunk[first + 2], chunk[first + 3]);
        uvec4 scale_and_sums = chunk[first + 4];
        float scale = uintBitsToFloat(scale_and_sums.x);
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
            int of_high[2] = int[2](0, 0);
            int of_low[2] = int[2](0, 0);
            [[unroll]] for (uint q = 0; q < QUADS; q++) {
                uint g = group_of(q);
                of_high[g] += dotPacked4x8EXT(int(high[q / 4][q % 4]), codes[o * QUADS + q]);
                of_low[g] += dotPacked4x8EXT(int(low[q / 4][q % 4]), codes[o * QUADS + q]);
            }
            [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                int sum = int(scale_and_sums[1 + g]);
                float product = float(of_high[g] * 128 + of_low[g] - offsets[o] * sum);
                uint i = r * OUTPUTS + o;
                partial[i] = fma(scales[o].scale[g] * scale, product, partial[i]);
                if (MINIMUM) partial[i] = fma(scales[o].minimum[g] * scale, float(sum), partial[i]);
            }
        }
    }
}

// The same in float32.
void multiply_floats(uint index, uint index_of_chunk) {
    Run runs[OUTPUTS];
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) runs[o] = load_run(matrix_of(o), run_of(o, index));
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        float products[RESULTS];
        [[unroll]] for (uint i = 0; i < RESULTS; i++) products[i] = 0.0;
        [[unroll]] for (uint of_group = 0; of_group < QUADS / GROUPS; of_group++) {
            uint q = g * (QUADS / GROUPS) + of_group;
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                if (!has_row(r)) continue;
                vec4 quad = uintBitsToFloat(chunk[chunk_run(r, index_of_chunk) + q]);
                [[unroll]] for (uint c = 0; c < 4; c++) {
                    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
                        uint i = r * OUTPUTS + o;
                        products[i] = fma(runs[o].codes[q][c], quad[c], products[i]);
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0; i < RESULTS; i++) {
            partial[i] = fma(runs[i % OUTPUTS].scale[g], products[i], partial[i]);
        }
    }
}

// Result o of row r of this team is `result_of(r * OUTPUTS + o)`, after `form_results`.
float result_of(uint i) {
    return uintBitsToFloat(chunk[i / 4 * WORKGROUP_SIZE + team * LANES][i % 4]);
}

// Adds the sums of the lanes of each team. All invocations must call it.
void add_lanes() {
    const uint quads = (RESULTS + 3) / 4;
    uint own = gl_LocalInvocationID.x;
    vec4 sums[quads];
    [[unroll]] for (uint i = 0; i < RESULTS; i++) sums[i / 4][i % 4] = partial[i];
    [[unroll]] for (uint k = 0; k < quads; k++) chunk[k * WORKGROUP_SIZE + own] = floatBitsToUint(sums[k]);
    barrier();
    for (uint stride = LANES / 2; stride > 0; stride /= 2) {
        if (lane < stride) {
            [[unroll]] for (uint k = 0; k < quads; k++) {
                uint first = k * WORKGROUP_SIZE + own;
                vec4 sum = uintBitsToFloat(chunk[first]) + uintBitsToFloat(chunk[first + stride]);
                chunk[first] = floatBitsToUint(sum);
            }
        }
        barrier();
    }
}

// Loads the first weights.
void load_first(uint runs) {
    if (INTEGER) load_next(min(lane, runs - 1));
}

// Computes the results, after `load_first`. All invocations must call it.
void form_results(uint runs) {
    [[unroll]] for (uint i = 0; i < RESULTS; i++) partial[i] = 0.0;
    for (uint first = 0; first < runs; first += CHUNK_RUNS) {
        uint end = min(first + CHUNK_RUNS, runs);
        load_chunk(first, end);
        for (uint index = first + lane; index < end; index += LANES) {
            if (INTEGER) multiply_integers(index, index - first, min(index + LANES, runs - 1));
            else multiply_floats(index, index - first);
        }
        barrier();
    }
    add_lanes();
}
