#version 460
// y = x w^T + b for some tens of rows of x, or the gated product activation(gate) * up of two weights, with cooperative
// matrices: float16 products, float32 sums.
//
// With so few rows the time is that of reading the weights, so as many of them as possible must be on their way at any
// time. Each subgroup works alone: it computes SUBGROUP_OUTPUTS outputs of all rows of the tile, from its own range of
// the columns, step by step. It decodes RUNS runs of each output into its own part of the shared memory and multiplies them
// while those of the next AHEAD steps are being loaded, and no subgroup waits for another until all are done. Then the sums of
// the SUBGROUPS_DEEP ranges are added, in their order. Matrices of x are read from memory: `halves.comp` stores their rows
// next to each other, and subgroups of the same range find them in the cache.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include "weight_halves.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint TILE_ROWS = 16;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;      // of each weight
layout(constant_id = 4) const uint SUBGROUP_OUTPUTS = 32;  // of one weight
layout(constant_id = 5) const uint SUBGROUPS_DEEP = 1;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;
layout(constant_id = 9) const uint AHEAD = 1;              // steps
layout(constant_id = 17) const bool GATED = false;         // two weights (gate, up) with the same shape and format
layout(constant_id = 18) const uint ACTIVATION = 0;

const uint WEIGHTS = GATED ? 2 : 1;
const uint SUBGROUPS_ACROSS = TILE_OUTPUTS * WEIGHTS / SUBGROUP_OUTPUTS;
const uint LANES = WORKGROUP_SIZE / (SUBGROUPS_ACROSS * SUBGROUPS_DEEP);
const uint MATRICES_DOWN = TILE_ROWS / M;
const uint MATRICES_ACROSS = SUBGROUP_OUTPUTS / N;
const uint MATRICES_DEEP = 32 / K;

// Steps of K columns that are unrolled. A software device compiles many of them for minutes.
const uint STEPS_UNROLLED = MATRICES_DEEP > 1 ? 4 : 2;

// In units of eight float16 values or four float32 values. An odd stride keeps the rows of a matrix in different banks.
const uint RUN_OCTETS = 4;
// Runs of a step: of 4 bits, two runs have the smallest number of bytes that memory delivers.
const uint RUNS = 2;
const uint STRIDE = RUNS * RUN_OCTETS + 1;
const uint RESULT_QUADS = M * SUBGROUP_OUTPUTS / 4;

// The runs of a step that an invocation loads and decodes. Those of an output are next to each other in memory, and are loaded by
// neighbouring invocations.
const uint RUNS_EACH = (SUBGROUP_OUTPUTS * RUNS + LANES - 1) / LANES;

// The part of each subgroup: rows of weights; at the end, M rows of results.
const uint WEIGHT_QUADS = SUBGROUP_OUTPUTS * STRIDE;
const uint PART = WEIGHT_QUADS > RESULT_QUADS ? WEIGHT_QUADS : RESULT_QUADS;
shared uvec4 parts[SUBGROUPS_ACROSS * SUBGROUPS_DEEP * PART];

uint runs;
uint first_output;   // of the subgroup
Matrix own;

struct Next {
    Packed weights[RUNS_EACH];
};

// The index of the run that is number `e` of this invocation. Indices past the last output or run repeat it.
uint64_t index_of_run(uint e, uint first_run) {
    uint i = gl_SubgroupInvocationID + e * LANES;
    uint output_row = min(first_output + i / RUNS, outputs - 1);
    return uint64_t(output_row) * runs + min(first_run + i % RUNS, runs - 1);
}

void load_next(uint first_run, inout Next next) {
    [[unroll]] for (uint e = 0; e < RUNS_EACH; e++) next.weights[e] = load_packed(own, index_of_run(e, first_run));
}

// Runs past the last are zeros.
void stage(uint part, uint first_run, Next next) {
    [[unroll]] for (uint e = 0; e < RUNS_EACH; e++) {
        uint i = gl_SubgroupInvocationID + e * LANES;
        uint start = part + i / RUNS * STRIDE + i % RUNS * RUN_OCTETS;
        uvec4 octets[RUN_OCTETS];
        decode_run(own, index_of_run(e, first_run), next.weights[e], octets);
        bool is_run = first_run + i % RUNS < runs;
        if (i / RUNS >= SUBGROUP_OUTPUTS) continue;
        [[unroll]] for (uint q = 0; q < RUN_OCTETS; q++) parts[start + q] = is_run ? octets[q] : uvec4(0);
    }
}

// The sum of a result over the ranges of columns. `output_row` counts those of all weights of the tile.
float result_of(uint row, uint output_row) {
    uint across = output_row / SUBGROUP_OUTPUTS;
    uint value = row * SUBGROUP_OUTPUTS + output_row % SUBGROUP_OUTPUTS;
    float sum = 0.0;
    [[unroll]] for (uint deep = 0; deep < SUBGROUPS_DEEP; deep++) {
        sum += uintBitsToFloat(parts[(deep * SUBGROUPS_ACROSS + across) * PART + value / 4][value % 4]);
    }
    return sum;
}

// Stores M rows of results, which are in shared memory.
void store_results(uvec2 first, uint rows) {
    for (uint i = gl_LocalInvocationID.x; i < M * TILE_OUTPUTS; i += WORKGROUP_SIZE) {
        uint row = first.x + i / TILE_OUTPUTS;
        uint output_row = first.y + i % TILE_OUTPUTS;
        if (row >= rows || output_row >= outputs) continue;
        float divisor = divisor_of_halves(x, row, runs).at[0] * WEIGHT_UNIT;
        float result = biased(result_of(i / TILE_OUTPUTS, i % TILE_OUTPUTS) * divisor, output_row);
        if (GATED) {
            float up = result_of(i / TILE_OUTPUTS, TILE_OUTPUTS + i % TILE_OUTPUTS) * divisor;
            if (HAS_SECOND_BIAS) up += second_bias.at[output_row];
            result = activate(ACTIVATION, result, up);
        }
        store_result(row, output_row, result);
    }
}

void main() {
    uvec2 first = tile_index() * uvec2(TILE_ROWS, TILE_OUTPUTS);
    uint rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    runs = (columns + 31) / 32;
    uint across = gl_SubgroupID % SUBGROUPS_ACROSS;
    uint deep = gl_SubgroupID / SUBGROUPS_ACROSS;
    uint part = gl_SubgroupID * PART;
    first_output = first.y + across * SUBGROUP_OUTPUTS % TILE_OUTPUTS;
    own = weight;
    if (GATED && across * SUBGROUP_OUTPUTS >= TILE_OUTPUTS) own = second;

    // The range of this subgroup. All have the same length, because some drivers let all subgroups wait for one another
    // where only the invocations of a subgroup should.
    uint steps = (runs + SUBGROUPS_DEEP * RUNS - 1) / (SUBGROUPS_DEEP * RUNS);
    uint start = deep * steps * RUNS;
    uint end = start + steps * RUNS;

    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[MATRICES_DOWN * MATRICES_ACROSS];
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Next next[AHEAD];
    [[unroll]] for (uint ahead = 0; ahead < AHEAD; ahead++) {
        if (start + ahead * RUNS < end) load_next(start + ahead * RUNS, next[ahead]);
    }
    for (uint first_step = start; first_step < end; first_step += AHEAD * RUNS) {
        [[unroll]] for (uint ahead = 0; ahead < AHEAD; ahead++) {
            uint first_run = first_step + ahead * RUNS;
            if (first_run >= end) break;
            stage(part, first_run, next[ahead]);
            subgroupBarrier();
            if (first_run + AHEAD * RUNS < end) load_next(first_run + AHEAD * RUNS, next[ahead]);
            for (uint first_k = 0; first_k < RUNS * MATRICES_DEEP; first_k += STEPS_UNROLLED) {
                [[unroll]] for (uint s = 0; s < STEPS_UNROLLED; s++) {
                    uint k = first_k + s;
                    // Blocks have memory for all of their rows; the results of rows past the last are not stored.
                    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_rows[MATRICES_DOWN];
                    uint run = min(first_run + k / MATRICES_DEEP, runs - 1);
                    uint octet = k % MATRICES_DEEP * K / 8;
                    [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                        WordQuads matrix = WordQuads(run_of_halves(x, first.x + r * M, run, runs));
                        coopMatLoad(of_rows[r], matrix.at, octet, RUN_OCTETS, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
                        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_outputs;
                        uint corner = part + o * N * STRIDE + k * K / 8;
                        coopMatLoad(of_outputs, parts, corner, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                        [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                            uint i = r * MATRICES_ACROSS + o;
                            sums[i] = coopMatMulAdd(of_rows[r], of_outputs, sums[i]);
                        }
                    }
                }
            }
            subgroupBarrier();
        }
    }

    [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
        [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
            uint corner = part + o * N / 4;
            coopMatStore(sums[r * MATRICES_ACROSS + o], parts, corner, SUBGROUP_OUTPUTS / 4, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        store_results(first + uvec2(r * M, 0), rows);
        barrier();
    }
}
