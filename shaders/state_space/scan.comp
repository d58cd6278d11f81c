#version 460
// The state space of Mamba 2: one workgroup for some columns of a head of a run of rows.
//
// An invocation keeps a slice of a column of the state in registers while it goes over the rows. The slices are summed in
// shared memory, always in the same order. A few rows are loaded together, so that their latencies overlap.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softplus.glsl>
#include <recurrent/runs.glsl>

layout(push_constant, scalar) uniform Push {
    Floats mixed;
    Floats dt;
    Floats a;
    Floats d;
    Floats dt_bias;
    Floats y;
    uint64_t state;
    Step step;
    uint slot_len;
    uint heads;
    uint width;      // of a head
    uint b_groups;
};

#include <recurrent/columns.glsl>

shared float inner[ROWS * STATE_ROWS];      // B
shared float outer[ROWS * STATE_ROWS];      // C
shared float values[ROWS * COLUMNS];        // x
shared float times[ROWS];

// Loads x, B, C and dt of `count` rows.
void load_rows(uint row, uint count) {
    uint mixed_width = heads * width + 2 * b_groups * STATE_ROWS;
    uint start_of_b = heads * width + head / (heads / b_groups) * STATE_ROWS;
    for (uint i = lane; i < count * STATE_ROWS; i += WORKGROUP_SIZE) {
        uint start = (row + i / STATE_ROWS) * mixed_width + start_of_b + i % STATE_ROWS;
        inner[i] = mixed.at[start];
        outer[i] = mixed.at[start + b_groups * STATE_ROWS];
    }
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint own = first_column + i % COLUMNS;
        values[i] = own < width ? mixed.at[(row + i / COLUMNS) * mixed_width + head * width + own] : 0.0;
    }
    for (uint i = lane; i < count; i += WORKGROUP_SIZE) {
        times[i] = softplus(dt.at[(row + i) * heads + head] + dt_bias.at[head]);
    }
}

// Updates the state with a loaded row. Each invocation keeps its part of the output.
void update(uint row) {
    uint start = row * STATE_ROWS + slice * VALUES;
    float decay = exp(times[row] * a.at[head]);
    float x = times[row] * values[row * COLUMNS + column];
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < VALUES; i++) {
        held[i] = fma(inner[start + i], x, held[i] * decay);
        sum = fma(held[i], outer[start + i], sum);
    }
    outputs[row * WORKGROUP_SIZE + lane] = sum;
}

void store_outputs(uint row, uint count) {
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint own = first_column + i % COLUMNS;
        float sum = fma(d.at[head], values[i], output_sum(i));
        if (own < width) y.at[((row + i / COLUMNS) * heads + head) * width + own] = sum;
    }
}

void main() {
    uint run = gl_WorkGroupID.y;
    if (run >= step.runs) return;
    find_columns(width);
    uint first = step.run_starts.at[run];
    uint end = run_end(step, run);
    load_state(slot_before(step, first));
    for (uint row = first; row < end; row += ROWS) {
        uint count = min(ROWS, end - row);
        load_rows(row, count);
        barrier();
        for (uint i = 0; i < count; i++) {
            update(i);
            store_state(step.state_to.at[row + i]);
        }
        barrier();
        store_outputs(row, count);
        barrier();
    }
}
