// Results of many rows in float32: a workgroup computes a tile of results.
//
// It iterates over the columns, one run at a time. The rows of x and the decoded weights are staged in shared memory,
// so that each is read from device memory and decoded once for the whole tile. An invocation keeps the sums of
// LANE_ROWS x LANE_OUTPUTS results in registers. Its rows are LANES_DOWN apart, and its outputs LANES_ACROSS apart.
//
// The stride of rows in shared memory is 9 quads, not 8, so that eight invocations that read the same quad of adjacent
// rows access different banks, and so do eight that write. For each 16 bytes that an invocation reads there, it does 4
// LANE_ROWS LANE_OUTPUTS / (LANE_ROWS + LANE_OUTPUTS) multiply-adds: 16 with 8 x 8.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint TILE_ROWS = 32;
layout(constant_id = 2) const uint TILE_OUTPUTS = 32;
layout(constant_id = 4) const uint LANE_ROWS = 4;
layout(constant_id = 5) const uint LANE_OUTPUTS = 4;

const uint LANES_ACROSS = TILE_OUTPUTS / LANE_OUTPUTS;
const uint LANES_DOWN = TILE_ROWS / LANE_ROWS;
const uint STRIDE = QUADS + 1;
const uint LANE_RESULTS = LANE_ROWS * LANE_OUTPUTS;

shared vec4 inputs[TILE_ROWS * STRIDE];
shared vec4 weights[TILE_OUTPUTS * STRIDE];

// The including shader defines the rows and outputs of a tile.
vec4 input_quad(uint r, uint column);
Run weight_run(uint o, uint index);

// The tile row of this invocation's r-th row. `tile_output` is the same for its o-th output.
uint tile_row(uint r) {
    return gl_LocalInvocationID.x / LANES_ACROSS + r * LANES_DOWN;
}

uint tile_output(uint o) {
    return gl_LocalInvocationID.x % LANES_ACROSS + o * LANES_ACROSS;
}

void stage(uint run_index) {
    uint lane = gl_LocalInvocationID.x;
    for (uint i = lane; i < TILE_ROWS * QUADS; i += WORKGROUP_SIZE) {
        inputs[i / QUADS * STRIDE + i % QUADS] = input_quad(i / QUADS, run_index * 32 + i % QUADS * 4);
    }
    for (uint i = lane; i < TILE_OUTPUTS; i += WORKGROUP_SIZE) {
        Run run = weight_run(i, run_index);
        [[unroll]] for (uint q = 0; q < QUADS; q++) weights[i * STRIDE + q] = values(run, q);
    }
}

// Computes the results of this invocation. All invocations must call it.
void form_tile(uint runs, out float sums[LANE_RESULTS]) {
    [[unroll]] for (uint i = 0; i < LANE_RESULTS; i++) sums[i] = 0.0;
    for (uint run_index = 0; run_index < runs; run_index++) {
        stage(run_index);
        barrier();
        [[dont_unroll]] for (uint q = 0; q < QUADS; q++) {
            vec4 of_outputs[LANE_OUTPUTS];
            [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) of_outputs[o] = weights[tile_output(o) * STRIDE + q];
            [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
                vec4 of_row = inputs[tile_row(r) * STRIDE + q];
                [[unroll]] for (uint o = 0; o < LANE_OUTPUTS; o++) {
                    uint i = r * LANE_OUTPUTS + o;
                    [[unroll]] for (uint c = 0; c < 4; c++) sums[i] = fma(of_row[c], of_outputs[o][c], sums[i]);
                }
            }
        }
        barrier();
    }
}
