#version 460
// The selective scan of Mamba 1: one workgroup for some channels of a run of rows.
//
// An invocation keeps a slice of the state of a channel in registers while it goes over the rows. The slices are summed in
// shared memory, always in the same order. A few rows are loaded together, so that their latencies overlap.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softplus.glsl>
#include <recurrent/runs.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats dt;
    Floats b;
    Floats c;
    Floats a;        // in the layout of the state
    Floats d;
    Floats y;
    uint64_t state;
    Step step;
    uint slot_len;
    uint channels;
};

#include <recurrent/columns.glsl>

shared float inner[ROWS * STATE_ROWS];      // B
shared float outer[ROWS * STATE_ROWS];      // C
shared float values[ROWS * COLUMNS];        // x
shared float times[ROWS * COLUMNS];

float rates[VALUES]; // A of the slice

void load_rates() {
    [[unroll]] for (uint i = 0; i < VALUES; i++) rates[i] = is_stored() ? a.at[place() + i * BLOCK_COLUMNS] : 0.0;
}

// Loads x, B, C and dt of `count` rows.
void load_rows(uint row, uint count) {
    for (uint i = lane; i < count * STATE_ROWS; i += WORKGROUP_SIZE) {
        inner[i] = b.at[row * STATE_ROWS + i];
        outer[i] = c.at[row * STATE_ROWS + i];
    }
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint channel = first_column + i % COLUMNS;
        uint at = (row + i / COLUMNS) * channels + channel;
        values[i] = channel < channels ? x.at[at] : 0.0;
        times[i] = channel < channels ? softplus(dt.at[at]) : 0.0;
    }
}

// Updates the state with a loaded row. Each invocation keeps its part of the output.
void update(uint row) {
    uint start = row * STATE_ROWS + slice * VALUES;
    float time = times[row * COLUMNS + column];
    float added = time * values[row * COLUMNS + column];
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < VALUES; i++) {
        held[i] = fma(inner[start + i], added, held[i] * exp(time * rates[i]));
        sum = fma(held[i], outer[start + i], sum);
    }
    outputs[row * WORKGROUP_SIZE + lane] = sum;
}

void store_outputs(uint row, uint count) {
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint channel = first_column + i % COLUMNS;
        if (channel >= channels) continue;
        y.at[(row + i / COLUMNS) * channels + channel] = fma(d.at[channel], values[i], output_sum(i));
    }
}

void main() {
    uint run = gl_WorkGroupID.y;
    if (run >= step.runs) return;
    find_columns(channels);
    uint first = step.run_starts.at[run];
    uint end = run_end(step, run);
    load_rates();
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
