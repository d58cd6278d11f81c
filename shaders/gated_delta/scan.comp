#version 460
// The gated delta rule: one workgroup for some columns of a head of a run of rows.
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
    Floats b;
    Floats a;
    Floats dt_bias;
    Floats y;
    uint64_t state;
    Step step;
    uint slot_len;
    uint key_heads;
    uint value_heads;
    uint value_dim;
};

#include <recurrent/columns.glsl>

layout(constant_id = 3) const uint DECAYS = 1;           // 1, or STATE_ROWS for a decay of each row of the state
layout(constant_id = 4) const bool TILED = false;        // value heads repeat the key heads
layout(constant_id = 5) const float BOUND = 0.0;         // of the logarithms of decays; 0 for decays by softplus

const uint PARTS = 16;                   // of the sum of the squares of a query or key
const float EPSILON = 1e-6;

shared float queries[ROWS * STATE_ROWS];
shared float keys[ROWS * STATE_ROWS];
shared float values[ROWS * COLUMNS];
shared float decays[ROWS * DECAYS];
shared float betas[ROWS];
shared float squares[2 * ROWS * PARTS];
shared float scales[2 * ROWS];                     // of the queries, then of the keys
shared float recalled[2 * WORKGROUP_SIZE];       // of this row and of the one before

// The logarithm of a decay.
float log_decay(float a, float time) {
    return BOUND == 0.0 ? a * softplus(time) : BOUND / (1.0 + exp(-(a * time)));
}

// Loads queries, keys, values, decays and betas of `count` rows.
void load_rows(uint row, uint count) {
    uint key_head = TILED ? head % key_heads : head / (value_heads / key_heads);
    uint width = 2 * key_heads * STATE_ROWS + value_heads * value_dim;
    for (uint i = lane; i < count * STATE_ROWS; i += WORKGROUP_SIZE) {
        uint start = (row + i / STATE_ROWS) * width + key_head * STATE_ROWS + i % STATE_ROWS;
        queries[i] = mixed.at[start];
        keys[i] = mixed.at[start + key_heads * STATE_ROWS];
    }
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint own = first_column + i % COLUMNS;
        uint start = (row + i / COLUMNS) * width + 2 * key_heads * STATE_ROWS + head * value_dim;
        values[i] = own < value_dim ? mixed.at[start + own] : 0.0;
    }
    for (uint i = lane; i < count * DECAYS; i += WORKGROUP_SIZE) {
        uint entry = head * DECAYS + i % DECAYS;
        float time = dt.at[(row + i / DECAYS) * value_heads * DECAYS + entry] + dt_bias.at[entry];
        decays[i] = exp(log_decay(a.at[head], time));
    }
    for (uint i = lane; i < count; i += WORKGROUP_SIZE) {
        betas[i] = 1.0 / (1.0 + exp(-b.at[(row + i) * value_heads + head]));
    }
}

// Computes the scales of the queries and keys of `count` loaded rows.
void scale_rows(uint count) {
    for (uint i = lane; i < 2 * count * PARTS; i += WORKGROUP_SIZE) {
        uint row = i / PARTS % count;
        float sum = 0.0;
        for (uint index = i % PARTS; index < STATE_ROWS; index += PARTS) {
            float value = i < count * PARTS ? queries[row * STATE_ROWS + index] : keys[row * STATE_ROWS + index];
            sum = fma(value, value, sum);
        }
        squares[i] = sum;
    }
    barrier();
    for (uint i = lane; i < 2 * count; i += WORKGROUP_SIZE) {
        float sum = EPSILON;
        for (uint part = 0; part < PARTS; part++) sum += squares[i * PARTS + part];
        scales[i] = 1.0 / sqrt(i < count ? sum * float(STATE_ROWS) : sum);
    }
    barrier();
}

float decay_of(uint row, uint index) {
    return decays[DECAYS == 1 ? row : row * DECAYS + slice * VALUES + index];
}

// Updates the state with a loaded row. Each invocation keeps its part of the output.
void update(uint row, float scale) {
    uint start = row * STATE_ROWS + slice * VALUES;
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < VALUES; i++) {
        held[i] *= decay_of(row, i);
        sum = fma(held[i], keys[start + i], sum);
    }
    uint parity = row % 2 * WORKGROUP_SIZE;
    recalled[parity + lane] = sum;
    barrier();
    float all = 0.0;
    for (uint i = 0; i < SLICES; i++) all += recalled[parity + i * COLUMNS + column];
    float correction = betas[row] * (values[row * COLUMNS + column] - all * scale) * scale;
    float read = 0.0;
    [[unroll]] for (uint i = 0; i < VALUES; i++) {
        held[i] = fma(keys[start + i], correction, held[i]);
        read = fma(held[i], queries[start + i], read);
    }
    outputs[row * WORKGROUP_SIZE + lane] = read;
}

void store_outputs(uint row, uint count) {
    for (uint i = lane; i < count * COLUMNS; i += WORKGROUP_SIZE) {
        uint own = first_column + i % COLUMNS;
        uint place = ((row + i / COLUMNS) * value_heads + head) * value_dim + own;
        if (own < value_dim) y.at[place] = output_sum(i) * scales[i / COLUMNS];
    }
}

void main() {
    uint run = gl_WorkGroupID.y;
    if (run >= step.runs) return;
    find_columns(value_dim);
    uint first = step.run_starts.at[run];
    uint end = run_end(step, run);
    load_state(slot_before(step, first));
    for (uint row = first; row < end; row += ROWS) {
        uint count = min(ROWS, end - row);
        load_rows(row, count);
        barrier();
        scale_rows(count);
        for (uint i = 0; i < count; i++) {
            update(i, scales[count + i]);
            store_state(step.state_to.at[row + i]);
        }
        barrier();
        store_outputs(row, count);
        barrier();
    }
}
