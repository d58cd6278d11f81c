#version 460
// y = x w^T + b for many rows of x, with cooperative matrices: float16 products, float32 sums.
//
// As in `tile.comp`, a workgroup computes a tile of y and iterates over the columns, RUNS runs at a time, in shared
// memory. Shared memory holds x as written by `halves.comp`, and the weights decoded and rounded to float16. Each
// subgroup computes a part of the tile in matrices of M x N. The next runs are loaded while the current ones are
// multiplied, and decoded when they are put into shared memory. With two buffers that is another part of it than the one
// that is read, so that some subgroups decode while others multiply.
//
// The stride of rows in shared memory is an odd number of 16-byte units, so that the eight rows that a matrix reads at
// once are in different banks.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>
#include <gpu/half_range.glsl>
#include <quant/matrix.glsl>
#include "halves.glsl"
#include "weight_halves.glsl"
#include "product.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint TILE_ROWS = 32;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;
layout(constant_id = 4) const uint SUBGROUP_ROWS = 32;
layout(constant_id = 5) const uint SUBGROUP_OUTPUTS = 32;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 9) const uint RUNS = 1;
layout(constant_id = 17) const uint BUFFERS = 1;

// In units of eight float16 values or four float32 values.
const uint RUN_OCTETS = 4;
const uint STRIDE = RUNS * RUN_OCTETS + 1;
const uint BUFFER = (TILE_ROWS + TILE_OUTPUTS) * STRIDE;
const uint RESULT_QUADS = M * SUBGROUP_OUTPUTS / 4;

const uint SUBGROUPS_ACROSS = TILE_OUTPUTS / SUBGROUP_OUTPUTS;
const uint MATRICES_DOWN = SUBGROUP_ROWS / M;
const uint MATRICES_ACROSS = SUBGROUP_OUTPUTS / N;

// The octets of x and the runs of the weights that an invocation stages.
const uint INPUTS_EACH = (TILE_ROWS * RUNS * RUN_OCTETS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint WEIGHTS_EACH = (TILE_OUTPUTS * RUNS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// Each buffer has rows of x, then rows of weights. At the end, each subgroup has M rows of results.
shared uvec4 staged[BUFFERS * BUFFER];

struct Next {
    uvec4 inputs[INPUTS_EACH];
    Packed weights[WEIGHTS_EACH];
};

uvec2 first;   // row and output of the tile
uint rows;
uint runs;

// The index of a run that an invocation decodes. Outputs past the last repeat it; their results are not stored. So do
// runs.
uint64_t index_of_run(uint i, uint first_run) {
    return uint64_t(min(first.y + i / RUNS, outputs - 1)) * runs + min(first_run + i % RUNS, runs - 1);
}

// Rows past the last repeat it; their results are not stored.
void load_next(uint first_run, inout Next next) {
    uint lane = gl_LocalInvocationID.x;
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        uint row = min(first.x + i / (RUNS * RUN_OCTETS), rows - 1);
        uint run = min(first_run + i / RUN_OCTETS % RUNS, runs - 1);
        next.inputs[e] = octet_of_x(x, row, run * RUN_OCTETS + i % RUN_OCTETS, runs).at[0];
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        if (i / RUNS < TILE_OUTPUTS) next.weights[e] = load_packed(weight, index_of_run(i, first_run));
    }
}

// Weights of runs past the last are zeros.
void stage(uint buffer_start, uint first_run, Next next) {
    uint lane = gl_LocalInvocationID.x;
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        uint row = i / (RUNS * RUN_OCTETS);
        if (row < TILE_ROWS) staged[buffer_start + row * STRIDE + i % (RUNS * RUN_OCTETS)] = next.inputs[e];
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        uint i = lane + e * WORKGROUP_SIZE;
        if (i / RUNS < TILE_OUTPUTS) {
            uint start = buffer_start + (TILE_ROWS + i / RUNS) * STRIDE + i % RUNS * RUN_OCTETS;
            bool exists = RUNS == 1 || first_run + i % RUNS < runs;
            Run run = unpack(weight, index_of_run(i, first_run), next.weights[e]);
            [[unroll]] for (uint q = 0; q < RUN_OCTETS; q++) staged[start + q] = exists ? octet_of_halves(run, q) : uvec4(0);
        }
    }
}

// Stores a result of which the sum is at `value` in shared memory.
void finish(uint row, uint output_row, uint value) {
    if (row >= rows || output_row >= outputs) return;
    float result = uintBitsToFloat(staged[value / 4][value % 4]) * divisor_of_halves(x, row, runs).at[0];
    store_result(row, output_row, biased(result, output_row));
}

void main() {
    first = tile_index() * uvec2(TILE_ROWS, TILE_OUTPUTS);
    rows = count_rows(step, row_kind);
    if (first.x >= rows || first.y >= outputs) return;
    runs = (columns + 31) / 32;
    // The position of this subgroup in the tile.
    uint down = gl_SubgroupID / SUBGROUPS_ACROSS * SUBGROUP_ROWS;
    uint across = gl_SubgroupID % SUBGROUPS_ACROSS * SUBGROUP_OUTPUTS;

    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[MATRICES_DOWN * MATRICES_ACROSS];
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Next next;
    load_next(0, next);
    uint current = 0;
    if (BUFFERS == 2) {
        stage(current, 0, next);
        if (RUNS < runs) load_next(RUNS, next);
        barrier();
    }
    for (uint first_run = 0; first_run < runs; first_run += RUNS) {
        if (BUFFERS == 1) {
            stage(current, first_run, next);
            barrier();
            if (first_run + RUNS < runs) load_next(first_run + RUNS, next);
        }
        [[unroll]] for (uint k = 0; k < RUNS * 32; k += K) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_rows[MATRICES_DOWN];
            [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                uint corner = current + (down + r * M) * STRIDE + k / 8;
                coopMatLoad(of_rows[r], staged, corner, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_outputs;
                uint corner = current + (TILE_ROWS + across + o * N) * STRIDE + k / 8;
                coopMatLoad(of_outputs, staged, corner, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                    uint i = r * MATRICES_ACROSS + o;
                    sums[i] = coopMatMulAdd(of_rows[r], of_outputs, sums[i]);
                }
            }
        }
        if (BUFFERS == 2) {
            current = BUFFER - current;
            uint following = first_run + RUNS;
            if (following < runs) stage(current, following, next);
            if (following + RUNS < runs) load_next(following + RUNS, next);
        }
        barrier();
    }

    // Each subgroup has a part of the memory.
    uint part = gl_SubgroupID * RESULT_QUADS;
    [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
        [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
            uint i = r * MATRICES_ACROSS + o;
            coopMatStore(sums[i], staged, part + o * N / 4, SUBGROUP_OUTPUTS / 4, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        for (uint e = gl_SubgroupInvocationID; e < M * SUBGROUP_OUTPUTS; e += gl_SubgroupSize) {
            uvec2 place = uvec2(down + r * M + e / SUBGROUP_OUTPUTS, across + e % SUBGROUP_OUTPUTS);
            finish(first.x + place.x, first.y + place.y, 4 * part + e);
        }
        subgroupBarrier();
    }
}
