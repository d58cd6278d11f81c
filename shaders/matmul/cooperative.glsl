// Results of many rows with cooperative matrices: float16 products, float32 sums. A workgroup computes a tile of results.
//
// It iterates over the columns, RUNS runs at a time, in shared memory. Shared memory holds x as written by `halves.comp`, and
// the weights decoded and rounded to float16. Each subgroup computes a part of the tile in matrices of M x N. The next runs are
// loaded while the current ones are multiplied, and decoded afterwards, so that nothing waits for memory before.
//
// The stride of rows in shared memory is an odd number of 16-byte units, so that the eight rows that a matrix reads at
// once are in different banks.

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

// Steps of K columns that are unrolled. A software device compiles many of them for minutes.
const uint STEPS_UNROLLED = K < 32 ? 2 : 1;

// The octets of x and the runs of the weights that an invocation stages.
const uint INPUTS_EACH = (TILE_ROWS * RUNS * RUN_OCTETS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint WEIGHTS_EACH = (TILE_OUTPUTS * RUNS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// Rows of x, then rows of weights. At the end, one matrix of results for each subgroup.
shared uvec4 staged[(TILE_ROWS + TILE_OUTPUTS) * STRIDE];

struct Next {
    uvec4 inputs[INPUTS_EACH];
    Packed weights[WEIGHTS_EACH];
};

// The including shader defines the rows and outputs of a tile: the address of a run of x, the weight of an output and the
// index of its run there. Rows and outputs past the last may repeat it.
uint64_t input_run(uint r, uint run);
Matrix matrix_of(uint o);
uint64_t weight_run(uint o, uint run);

// Stores a result of the tile. `second` is that of the output TILE_OUTPUTS / 2 further on.
void store_of_tile(uint r, uint o, float result, float second);

void load_next(uint first_run, uint runs, inout Next next) {
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        uint run = min(first_run + i / RUN_OCTETS % RUNS, runs - 1);
        next.inputs[e] = WordQuads(input_run(i / (RUNS * RUN_OCTETS), run)).at[i % RUN_OCTETS];
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        uint run = min(first_run + i % RUNS, runs - 1);
        next.weights[e] = load_packed(matrix_of(i / RUNS), weight_run(i / RUNS, run));
    }
}

// Runs past the last are zeros.
void stage(uint first_run, uint runs, Next next) {
    [[unroll]] for (uint e = 0; e < INPUTS_EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        uint row = i / (RUNS * RUN_OCTETS);
        bool is_run = first_run + i / RUN_OCTETS % RUNS < runs;
        if (row < TILE_ROWS) staged[row * STRIDE + i % (RUNS * RUN_OCTETS)] = is_run ? next.inputs[e] : uvec4(0);
    }
    [[unroll]] for (uint e = 0; e < WEIGHTS_EACH; e++) {
        uint i = gl_LocalInvocationID.x + e * WORKGROUP_SIZE;
        uint start = (TILE_ROWS + i / RUNS) * STRIDE + i % RUNS * RUN_OCTETS;
        uint run = min(first_run + i % RUNS, runs - 1);
        uvec4 octets[RUN_OCTETS];
        decode_run(matrix_of(i / RUNS), weight_run(i / RUNS, run), next.weights[e], octets);
        bool is_run = first_run + i % RUNS < runs;
        if (i / RUNS < TILE_OUTPUTS) {
            [[unroll]] for (uint q = 0; q < RUN_OCTETS; q++) staged[start + q] = is_run ? octets[q] : uvec4(0);
        }
    }
}

// An element of the matrix of results of a subgroup.
float staged_result(uint subgroup, uint e) {
    return uintBitsToFloat(staged[subgroup * MATRIX_QUADS + e / 4][e % 4]) * WEIGHT_UNIT;
}

// Computes the tile and stores its results. All invocations must call it. With `in_pairs` the results of the first half of the
// outputs are stored together with those of the second.
void compute_tile(uint runs, bool in_pairs) {
    // The position of this subgroup in the tile.
    uint down = gl_SubgroupID / SUBGROUPS_ACROSS * SUBGROUP_ROWS;
    uint across = gl_SubgroupID % SUBGROUPS_ACROSS * SUBGROUP_OUTPUTS;
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[MATRICES_DOWN * MATRICES_ACROSS];
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    Next next;
    load_next(0, runs, next);
    for (uint first_run = 0; first_run < runs; first_run += RUNS) {
        stage(first_run, runs, next);
        barrier();
        if (first_run + RUNS < runs) load_next(first_run + RUNS, runs, next);
        for (uint first_k = 0; first_k < RUNS * 32; first_k += STEPS_UNROLLED * K) {
            [[unroll]] for (uint s = 0; s < STEPS_UNROLLED; s++) {
                uint octet = (first_k + s * K) / 8;
                coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> of_rows[MATRICES_DOWN];
                [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                    coopMatLoad(of_rows[r], staged, (down + r * M) * STRIDE + octet, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint o = 0; o < MATRICES_ACROSS; o++) {
                    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> of_outputs;
                    uint start = (TILE_ROWS + across + o * N) * STRIDE + octet;
                    coopMatLoad(of_outputs, staged, start, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < MATRICES_DOWN; r++) {
                        uint i = r * MATRICES_ACROSS + o;
                        sums[i] = coopMatMulAdd(of_rows[r], of_outputs, sums[i]);
                    }
                }
            }
        }
        barrier();
    }
    uint paired = in_pairs ? max(SUBGROUPS_ACROSS / 2, 1) : 0;
    [[unroll]] for (uint i = 0; i < MATRICES_DOWN * MATRICES_ACROSS; i++) {
        coopMatStore(sums[i], staged, gl_SubgroupID * MATRIX_QUADS, N / 4, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint e = gl_SubgroupInvocationID; e < M * N; e += gl_SubgroupSize) {
            uint o = across + i % MATRICES_ACROSS * N + e % N;
            if (in_pairs && o >= TILE_OUTPUTS / 2) continue;
            uint r = down + i / MATRICES_ACROSS * M + e / N;
            store_of_tile(r, o, staged_result(gl_SubgroupID, e), staged_result(gl_SubgroupID + paired, e));
        }
        barrier();
    }
}
