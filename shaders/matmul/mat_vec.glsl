// Results of few rows. A team of LANES invocations computes OUTPUTS results of each of ROWS rows, so that the rows share
// the unpacked weights. The teams of a workgroup compute results of the same rows, and share the inputs in shared memory:
// CHUNK_RUNS runs of each row at a time. There the stride of a run is an odd number of quads, so that lanes that read the
// same quad of adjacent runs access different banks.
//
// Lane l of a team adds the runs l, l + LANES, ... The sums of the lanes are added in a tree. So the bits of a result
// depend neither on the other rows nor on the number of rows, outputs or teams of a workgroup.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint ROWS = 1;
layout(constant_id = 2) const uint OUTPUTS = 4;
layout(constant_id = 4) const uint LANES = 32;
layout(constant_id = 5) const uint CHUNK_RUNS = 32;    // a multiple of LANES
layout(constant_id = 6) const uint SHARED_QUADS = 288; // for the inputs of a chunk, and later for the sums of all lanes

const uint TEAMS = WORKGROUP_SIZE / LANES;
const uint RUN_STRIDE = QUADS + 1;

shared vec4 chunk[SHARED_QUADS];

uint team = gl_LocalInvocationID.x / LANES;
uint lane = gl_LocalInvocationID.x % LANES;

// The including shader defines the rows of a workgroup and the outputs of a team.
bool has_row(uint r);
vec4 input_quad(uint r, uint column);
Run weight_run(uint o, uint index);

// Loads the inputs of the runs first..end. All invocations must call it.
void load_chunk(uint first, uint end) {
    uint quads = (end - first) * QUADS;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (!has_row(r)) continue;
        for (uint i = gl_LocalInvocationID.x; i < quads; i += WORKGROUP_SIZE) {
            chunk[(r * CHUNK_RUNS + i / QUADS) * RUN_STRIDE + i % QUADS] = input_quad(r, first * 32 + 4 * i);
        }
    }
}

float partial[ROWS * OUTPUTS]; // the sums of this lane

// Adds the products of run `index`, which is run `index_of_chunk` of the chunk.
void multiply(uint index, uint index_of_chunk) {
    Run runs[OUTPUTS];
    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) runs[o] = weight_run(o, index);
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        float products[ROWS * OUTPUTS];
        float inputs[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) products[i] = 0.0;
        [[unroll]] for (uint r = 0; r < ROWS; r++) inputs[r] = 0.0;
        [[unroll]] for (uint of_group = 0; of_group < QUADS / GROUPS; of_group++) {
            uint q = g * (QUADS / GROUPS) + of_group;
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                if (!has_row(r)) continue;
                vec4 quad = chunk[(r * CHUNK_RUNS + index_of_chunk) * RUN_STRIDE + q];
                [[unroll]] for (uint c = 0; c < 4; c++) {
                    [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
                        uint i = r * OUTPUTS + o;
                        products[i] = fma(runs[o].codes[q][c], quad[c], products[i]);
                    }
                    if (MINIMUM) inputs[r] += quad[c];
                }
            }
        }
        [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) {
            Run run = runs[i % OUTPUTS];
            partial[i] = fma(run.scale[g], products[i], partial[i]);
            if (MINIMUM) partial[i] = fma(run.minimum[g], inputs[i / OUTPUTS], partial[i]);
        }
    }
}

uint sum_index(uint i, uint of_lane) {
    return i * WORKGROUP_SIZE + team * LANES + of_lane;
}

float sum_at(uint index) {
    return chunk[index / 4][index % 4];
}

// Result o of row r of this team is `result_of(r * OUTPUTS + o)`, after `form_results`.
float result_of(uint i) {
    return sum_at(sum_index(i, 0));
}

// Computes the results. All invocations must call it.
void form_results(uint runs) {
    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) partial[i] = 0.0;
    for (uint first = 0; first < runs; first += CHUNK_RUNS) {
        uint end = min(first + CHUNK_RUNS, runs);
        load_chunk(first, end);
        barrier();
        for (uint index = first + lane; index < end; index += LANES) multiply(index, index - first);
        barrier();
    }

    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) {
        uint index = sum_index(i, lane);
        chunk[index / 4][index % 4] = partial[i];
    }
    barrier();
    for (uint stride = LANES / 2; stride > 0; stride /= 2) {
        if (lane < stride) {
            [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) {
                uint index = sum_index(i, lane);
                chunk[index / 4][index % 4] = sum_at(index) + sum_at(index + stride);
            }
        }
        barrier();
    }
}
