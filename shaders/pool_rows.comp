#version 460
// Weighted means of the rows of pools: one invocation for each channel of each run of rows.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <recurrent/runs.glsl>

layout(constant_id = 1) const uint POOL = 16;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats gate;
    Floats bias;
    Floats y;
    uint64_t keys_state;
    uint64_t gates_state;
    Step step;
    uint channels;
    uint slot_len;
};

// Of the last rows, oldest first.
float keys[POOL];
float gates[POOL];

uint channel = gl_GlobalInvocationID.x;

void load_state(uint from) {
    [[unroll]] for (uint i = 1; i < POOL; i++) {
        uint at = (i - 1) * channels + channel;
        keys[i] = from == NO_SLOT ? 0.0 : values_of_slot(keys_state, slot_len, from).at[at];
        gates[i] = from == NO_SLOT ? 0.0 : values_of_slot(gates_state, slot_len, from).at[at];
    }
}

void store_state(uint to) {
    [[unroll]] for (uint i = 1; i < POOL; i++) {
        uint at = (i - 1) * channels + channel;
        values_of_slot(keys_state, slot_len, to).at[at] = keys[i];
        values_of_slot(gates_state, slot_len, to).at[at] = gates[i];
    }
}

// The weighted mean of the last `members` rows.
float mean_of(uint members) {
    float highest = -1.0 / 0.0;
    [[unroll]] for (uint i = 0; i < POOL; i++) {
        if (i + members < POOL) continue;
        highest = max(highest, gates[i] + bias.at[(i + members - POOL) * channels + channel]);
    }
    float sum = 0.0;
    float mean = 0.0;
    [[unroll]] for (uint i = 0; i < POOL; i++) {
        if (i + members < POOL) continue;
        float weight = exp(gates[i] + bias.at[(i + members - POOL) * channels + channel] - highest);
        sum += weight;
        mean = fma(weight, keys[i], mean);
    }
    return mean / sum;
}

void main() {
    uint run = gl_WorkGroupID.y;
    if (run >= step.runs || channel >= channels) return;
    uint first = step.run_starts.at[run];
    load_state(slot_before(step, first));
    for (uint row = first; row < run_end(step, run); row++) {
        [[unroll]] for (uint i = 1; i < POOL; i++) {
            keys[i - 1] = keys[i];
            gates[i - 1] = gates[i];
        }
        keys[POOL - 1] = x.at[row * channels + channel];
        gates[POOL - 1] = gate.at[row * channels + channel];
        y.at[row * channels + channel] = mean_of(step.positions.at[row] % POOL + 1);
        uint to = step.state_to.at[row];
        if (to != NO_SLOT) store_state(to);
    }
}
