#version 460
// y = x w^T + b for some tens of rows of x, or the gated product activation(gate) * up of two weights, with cooperative
// matrices: float16 products, float32 sums.
//
// With so few rows the time is that of reading the weights, so as many of them as possible must be on their way at any
// time. Each subgroup works alone: it computes SUBGROUP_OUTPUTS outputs of all rows of the tile, from its own range of
// the columns, run by run. It decodes the runs of a strip of 32 outputs into its own part of the shared memory and
// multiplies them while the next AHEAD runs of each output are being loaded, and no subgroup waits for another until all
// are done. Then the sums of the SUBGROUPS_DEEP ranges are added, in their order. Matrices of x are read from memory:
// `halves.comp` stores them in consecutive addresses, and subgroups of the same range find them in the cache.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>
#include <gpu/half_range.glsl>
#include <gpu/activation.glsl>
#include <quant/matrix.glsl>
#include "halves.glsl"
#include "weight_halves.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint TILE_ROWS = 16;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;      // of each weight
layout(constant_id = 4) const uint SUBGROUP_OUTPUTS = 32;  // of one weight
layout(constant_id = 5) const uint SUBGROUPS_DEEP = 1;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 9) const uint AHEAD = 1;
layout(constant_id = 17) const bool GATED = false;         // two weights (gate, up) with the same shape and format
layout(constant_id = 18) const uint ACTIVATION = 0;

const uint STRIP = 32;             // outputs
const uint STRIPS = SUBGROUP_OUTPUTS / STRIP;
const uint SUBGROUPS_ACROSS = TILE_OUTPUTS / SUBGROUP_OUTPUTS;   // of each weight
const uint WEIGHTS = GATED ? 2 : 1;
const uint LANES = WORKGROUP_SIZE / (SUBGROUPS_ACROSS * WEIGHTS * SUBGROUPS_DEEP);
const uint MATRICES_DOWN = TILE_ROWS / M;
const uint MATRICES_ACROSS = STRIP / N;
const uint MATRICES_DEEP = 32 / K;
const uint SUMS = MATRICES_DOWN * MATRICES_ACROSS;   // of a strip

// In units of eight float16 values or four float32 values. An odd stride keeps the rows of a matrix in different banks.
const uint RUN_OCTETS = 4;
const uint STRIDE = RUN_OCTETS + 1;
const uint WEIGHT_QUADS = STRIP * STRIDE;
const uint RESULT_QUADS = M * STRIP / 4;

// The outputs of a strip of which an invocation decodes the runs.
const uint OUTPUTS_EACH = (STRIP + LANES - 1) / LANES;

// The part of each subgroup: rows of weights; at the end, M rows of results.
const uint PART = WEIGHT_QUADS > RESULT_QUADS ? WEIGHT_QUADS : RESULT_QUADS;
shared uvec4 parts[SUBGROUPS_ACROSS * WEIGHTS * SUBGROUPS_DEEP * PART];

uvec2 first;         // row and output of the tile
uint rows;
uint runs;
uint first_output;   // of the subgroup
Matrix own;

// A run of each output of the subgroup.
struct Next {
    Packed weights[STRIPS * OUTPUTS_EACH];
};

// The output of a strip of which an invocation decodes its run number `e`.
uint output_of_strip(uint e) {
    return gl_SubgroupInvocationID + e % OUTPUTS_EACH * LANES;
}

// The index of run number `e` of this invocation. Outputs past the last repeat it; their results are not stored. So do
// runs.
uint64_t index_of_run(uint e, uint run) {
    uint output_row = min(first_output + e / OUTPUTS_EACH * STRIP + output_of_strip(e), outputs - 1);
    return uint64_t(output_row) * runs + min(run, runs - 1);
}

void load_next(uint run, inout Next next) {
    [[unroll]] for (uint e = 0; e < STRIPS * OUTPUTS_EACH; e++) next.weights[e] = load_packed(own, index_of_run(e, run));
}

// Runs past the last are zeros.
void stage(uint part, uint strip, uint run, Next next) {
    [[unroll]] for (uint i = 0; i < OUTPUTS_EACH; i++) {
        uint e = strip * OUTPUTS_EACH + i;
        Run decoded = unpack(own, index_of_run(e, run), next.weights[e]);
        [[unroll]] for (uint q = 0; q < RUN_OCTETS; q++) {
            uvec4 octet = run < runs ? octet_of_halves(decoded, q) : uvec4(0);
            if (output_of_strip(e) < STRIP) parts[part + output_of_strip(e) * STRIDE + q] = octet;
        }
    }
}

// The sum of a result over the ranges of columns: of value `value` of the parts of the subgroups that are number `across`.
float result_of(uint across, uint value) {
    float sum = 0.0;
    [[unroll]] for (uint deep = 0; deep < SUBGROUPS_DEEP; deep++) {
        uint part = (deep * SUBGROUPS_ACROSS * WEIGHTS + across) * PART;
        sum += uintBitsToFloat(parts[part + value / 4][value % 4]);
    }
    return sum;
}

// Stores the results of a strip in M rows, which are in shared memory.
void store_results(uint first_row, uint strip) {
    for (uint i = gl_LocalInvocationID.x; i < M * SUBGROUPS_ACROSS * STRIP; i += WORKGROUP_SIZE) {
        uint across = i / STRIP % SUBGROUPS_ACROSS;
        uint row_of_strip = i / (SUBGROUPS_ACROSS * STRIP);
        uint row = first_row + row_of_strip;
        uint output_row = first.y + across * SUBGROUP_OUTPUTS + strip * STRIP + i % STRIP;
        if (row >= rows || output_row >= outputs) continue;
        uint value = row_of_strip * STRIP + i % STRIP;
        float divisor = divisor_of_halves(x, row, runs).at[0];
        float result = biased(result_of(across, value) * divisor, output_row);
        if (GATED) {
            float up = result_of(SUBGROUPS_ACROSS + across, value) * divisor;
            if (HAS_SECOND_BIAS) up += second_bias.at[output_row];
            result = activate(ACTIVATION, result, up);
        }
        store_result(row, output_row, result);
    }
}

void main() {
    first = tile_index() * uvec2(TILE_ROWS, TILE_OUTPUTS);
    rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    runs = (columns + 31) / 32;
    uint across = gl_SubgroupID % (SUBGROUPS_ACROSS * WEIGHTS);
    uint deep = gl_SubgroupID / (SUBGROUPS_ACROSS * WEIGHTS);
    uint part = gl_SubgroupID * PART;
    first_output = first.y + across % SUBGROUPS_ACROSS * SUBGROUP_OUTPUTS;
    own = weight;
    if (GATED && across >= SUBGROUPS_ACROSS) own = second;

    // The range of this subgroup. All have the same length, because some drivers let all subgroups wait for one another
    // where only the invocations of a subgroup should.
    uint runs_each = (runs + SUBGROUPS_DEEP - 1) / SUBGROUPS_DEEP;
    uint start = deep * runs_each;
    uint end = start + runs_each;

    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[STRIPS * SUMS];
    [[unroll]] for (uint i = 0; i < STRIPS * SUMS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Next next[AHEAD];
    [[unroll]] for (uint ahead = 0; ahead < AHEAD; ahead++) {
        if (start + ahead < end) load_next(start + ahead, next[ahead]);
    }
    for (uint first_run = start; first_run < end; first_run += AHEAD) {
        [[unroll]] for (uint ahead = 0; ahead < AHEAD; ahead++) {
            uint run = first_run + ahead;
            if (run < end) {
                // Blocks have memory for all of their rows; the results of rows past the last are not stored.
                coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_rows[MATRICES_DEEP * MATRICES_DOWN];
                [[unroll]] for (uint i = 0; i < MATRICES_DEEP * MATRICES_DOWN; i++) {
                    uint octet = min(run, runs - 1) * RUN_OCTETS + i / MATRICES_DOWN * OCTETS_OF_K;
                    WordQuads corner = octet_of_x(x, first.x + i % MATRICES_DOWN * M, octet, runs);
                    coopMatLoad(of_rows[i], corner.at, 0, OCTETS_OF_K, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint strip = 0; strip < STRIPS; strip++) {
                    stage(part, strip, run, next[ahead]);
                    subgroupBarrier();
                    if (strip + 1 == STRIPS && run + AHEAD < end) load_next(run + AHEAD, next[ahead]);
                    [[unroll]] for (uint i = 0; i < MATRICES_DEEP * MATRICES_ACROSS; i++) {
                        uint k = i / MATRICES_ACROSS;
                        uint o = i % MATRICES_ACROSS;
                        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_outputs;
                        uint corner = part + o * N * STRIDE + k * OCTETS_OF_K;
                        coopMatLoad(of_outputs, parts, corner, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                        [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                            uint s = strip * SUMS + r * MATRICES_ACROSS + o;
                            sums[s] = coopMatMulAdd(of_rows[k * MATRICES_DOWN + r], of_outputs, sums[s]);
                        }
                    }
                    subgroupBarrier();
                }
            }
        }
    }

    [[unroll]] for (uint i = 0; i < STRIPS * MATRICES_DOWN; i++) {
        [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
            uint s = i * MATRICES_ACROSS + o;
            coopMatStore(sums[s], parts, part + o * N / 4, STRIP / 4, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        store_results(first.x + i % MATRICES_DOWN * M, i / MATRICES_DOWN);
        barrier();
    }
}
