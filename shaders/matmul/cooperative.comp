#version 460
// y = x w^T + b for many rows of x, with cooperative matrices: float16 products, float32 sums.
//
// As in `tile.comp`, a workgroup computes a tile of y and iterates over the columns, RUNS runs at a time, in shared
// memory. Shared memory holds x as written by `halves.comp`, and the weights decoded and rounded to float16. Each
// subgroup computes a part of the tile in matrices of M x N. The next runs are loaded while the current ones are multiplied, and
// decoded afterwards, so that nothing waits for memory before.
//
// The stride of rows in shared memory is an odd number of 16-byte units, so that the eight rows that a matrix reads at
// once are in different banks.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>
#include <quant/matrix.glsl>
#include "weight_halves.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint TILE_ROWS = 32;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;
layout(constant_id = 4) const uint SUBGROUP_ROWS = 32;
layout(constant_id = 5) const uint SUBGROUP_OUTPUTS = 32;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;
layout(constant_id = 9) const uint RUNS = 1;

// In units of eight float16 values or four float32 values.
const uint RUN_OCTETS = 4;
const uint STRIDE = RUNS * RUN_OCTETS + 1;
const uint MATRIX_QUADS = M * N / 4;

const uint SUBGROUPS_ACROSS = TILE_OUTPUTS / SUBGROUP_OUTPUTS;
const uint MATRICES_DOWN = SUBGROUP_ROWS / M;
const uint MATRICES_ACROSS = SUBGROUP_OUTPUTS / N;

// The octets of x and the runs of the weights that an invocation stages.
const uint INPUTS_EACH = (TILE_ROWS * RUNS * RUN_OCTETS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint WEIGHTS_EACH = (TILE_OUTPUTS * RUNS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// Rows of x, then rows of weights. At the end, one matrix of results for each subgroup.
shared uvec4 staged[(TILE_ROWS + TILE_OUTPUTS) * STRIDE];

struct Next {
    uvec4 inputs[INPUTS_EACH];
    Packed weights[WEIGHTS_EACH];
};

// The index of the run that is number `e` of this invocation. Indices past the last output or run repeat it.
uint64_t index_of_run(uint e, uint first_output, uint first_run, uint runs) {
    uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
    uint output_row = min(first_output + i / RUNS, outputs - 1);
    return uint64_t(output_row) * runs + min(first_run + i % RUNS, runs - 1);
}

// Indices past the last row or output repeat it; their results are not stored.
void load_next(uvec2 first, uint rows, uint first_run, uint runs, inout Next next) {
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        uint row = min(first.x + i / (RUNS * RUN_OCTETS), rows - 1);
        uint run = min(first_run + i / RUN_OCTETS % RUNS, runs - 1);
        next.inputs[e] = WordQuads(run_of_halves(x, row, run, runs)).at[i % RUN_OCTETS];
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        next.weights[e] = load_packed(weight, index_of_run(e, first.y, first_run, runs));
    }
}

// Runs past the last are zeros.
void stage(uvec2 first, uint first_run, uint runs, Next next) {
    uint lane = gl_LocalInvocationID.x;
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        uint row = i / (RUNS * RUN_OCTETS);
        bool is_run = first_run + i / RUN_OCTETS % RUNS < runs;
        if (row < TILE_ROWS) staged[row * STRIDE + i % (RUNS * RUN_OCTETS)] = is_run ? next.inputs[e] : uvec4(0);
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        uint start = (TILE_ROWS + i / RUNS) * STRIDE + i % RUNS * RUN_OCTETS;
        uvec4 octets[RUN_OCTETS];
        decode_run(weight, index_of_run(e, first.y, first_run, runs), next.weights[e], octets);
        bool is_run = first_run + i % RUNS < runs;
        if (i / RUNS < TILE_OUTPUTS) {
            [[unroll]] for (uint q = 0; q < RUN_OCTETS; q++) staged[start + q] = is_run ? octets[q] : uvec4(0);
        }
    }
}

void main() {
    uvec2 first = tile_index() * uvec2(TILE_ROWS, TILE_OUTPUTS);
    uint rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    uint runs = (columns + 31) / 32;
    // The position of this subgroup in the tile.
    uint down = gl_SubgroupID / SUBGROUPS_ACROSS * SUBGROUP_ROWS;
    uint across = gl_SubgroupID % SUBGROUPS_ACROSS * SUBGROUP_OUTPUTS;

    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[MATRICES_DOWN * MATRICES_ACROSS];
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Next next;
    load_next(first, rows, 0, runs, next);
    for (uint first_run = 0; first_run < runs; first_run += RUNS) {
        stage(first, first_run, runs, next);
        barrier();
        if (first_run + RUNS < runs) load_next(first, rows, first_run + RUNS, runs, next);
        [[unroll]] for (uint k = 0; k < RUNS * 32; k += K) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_rows[MATRICES_DOWN];
            [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                coopMatLoad(of_rows[r], staged, (down + r * M) * STRIDE + k / 8, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_outputs;
                uint start = (TILE_ROWS + across + o * N) * STRIDE + k / 8;
                coopMatLoad(of_outputs, staged, start, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                    uint i = r * MATRICES_ACROSS + o;
                    sums[i] = coopMatMulAdd(of_rows[r], of_outputs, sums[i]);
                }
            }
        }
        barrier();
    }

    uint result_start = gl_SubgroupID * MATRIX_QUADS;
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        coopMatStore(sums[i], staged, result_start, N / 4, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint e = gl_SubgroupInvocationID; e < M * N; e += gl_SubgroupSize) {
            uint row = first.x + down + i / MATRICES_ACROSS * M + e / N;
            uint output_row = first.y + across + i % MATRICES_ACROSS * N + e % N;
            if (row >= rows || output_row >= outputs) continue;
            float divisor = divisor_of_halves(x, row, runs).at[0] * WEIGHT_UNIT;
            float result = uintBitsToFloat(staged[result_start + e / 4][e % 4]) * divisor;
            store_result(row, output_row, biased(result, output_row));
        }
        barrier();
    }
}
