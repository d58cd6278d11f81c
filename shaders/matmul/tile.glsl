// Results of many rows, in float32: a workgroup forms a tile of them.
//
// It goes through the columns a run at a time: its rows of x and its decoded weights come to shared memory, so that each is
// read from the device, and decoded, once for the whole tile. An invocation keeps the sums of LANE_ROWS x LANE_OUTPUTS results
// in registers, which lie a whole turn of invocations apart.
//
// Rows in shared memory are 9 quads apart, and not 8: eight invocations that read the same quad of neighbouring rows meet
// different banks, and so do eight that write. For each 16 bytes that an invocation reads there it does
// 4 LANE_ROWS LANE_OUTPUTS / (LANE_ROWS + LANE_OUTPUTS) multiply-adds: 16 with 8 x 8.

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

// Which rows and which outputs a tile has, says the shader that includes this.
vec4 input_quad(uint r, uint column);
Run weight_run(uint o, uint index);

// The row in the tile of an invocation's r-th row, and the output of its o-th.
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

// The results of this invocation. All must come here.
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
