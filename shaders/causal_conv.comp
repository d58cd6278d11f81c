#version 460
// Depthwise causal convolution: one invocation for each channel of each run of rows.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/activation.glsl>
#include <recurrent/runs.glsl>

layout(constant_id = 1) const uint WIDTH = 4;
layout(constant_id = 2) const bool ACTIVATES = false;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats weight;
    Floats bias;
    Floats y;
    uint64_t state;
    Step step;
    uint channels;
    uint slot_len;
};

// Rows that are loaded at once, so that their latencies overlap.
const uint ROWS = 8;

float inputs[WIDTH]; // of the last rows, oldest first

void main() {
    uint run = gl_WorkGroupID.y;
    uint channel = gl_GlobalInvocationID.x;
    if (run >= step.runs || channel >= channels) return;
    uint first = step.run_starts.at[run];
    uint end = run_end(step, run);
    uint from = slot_before(step, first);
    [[unroll]] for (uint tap = 1; tap < WIDTH; tap++) {
        inputs[tap] = from == NO_SLOT ? 0.0 : values_of_slot(state, slot_len, from).at[(tap - 1) * channels + channel];
    }
    for (uint start = first; start < end; start += ROWS) {
        float loaded[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            loaded[i] = start + i < end ? x.at[(start + i) * channels + channel] : 0.0;
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            uint row = start + i;
            if (row >= end) break;
            [[unroll]] for (uint tap = 1; tap < WIDTH; tap++) inputs[tap - 1] = inputs[tap];
            inputs[WIDTH - 1] = loaded[i];
            float sum = bias.at[channel];
            [[unroll]] for (uint tap = 0; tap < WIDTH; tap++) {
                sum = fma(inputs[tap], weight.at[tap * channels + channel], sum);
            }
            y.at[row * channels + channel] = ACTIVATES ? activate(0, sum, 1.0) : sum;
            uint to = step.state_to.at[row];
            if (to == NO_SLOT) continue;
            Floats values = values_of_slot(state, slot_len, to);
            [[unroll]] for (uint tap = 1; tap < WIDTH; tap++) values.at[(tap - 1) * channels + channel] = inputs[tap];
        }
    }
}
