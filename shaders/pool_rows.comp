#version 460
// Weighted means of the rows of pools: one invocation for each channel of each run of rows. The softmax is computed online.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <recurrent/runs.glsl>

layout(constant_id = 1) const bool OVERLAP = false; // the rows of the pool before count too, with values of their own

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats gate;
    Floats bias;
    Floats y;
    uint64_t state;
    Step step;
    uint channels;
    uint pool;
    uint slot_len;
};

const uint PARTS = OVERLAP ? 2 : 1;

// An online softmax: the largest logit, the sum of the weights, the weighted sum.
struct Sum {
    float largest;
    float weight;
    float weighted;
};

// Of the own pool, of the one after and of the one before.
Sum own = Sum(0.0, 0.0, 0.0);
Sum after = Sum(0.0, 0.0, 0.0);
Sum before = Sum(0.0, 0.0, 0.0);

uint channel = gl_GlobalInvocationID.x;

Sum load_sum(Floats slot, uint index) {
    uint at = index * 3 * channels + channel;
    return Sum(slot.at[at], slot.at[at + channels], slot.at[at + 2 * channels]);
}

void store_sum(Floats slot, uint index, Sum sum) {
    uint at = index * 3 * channels + channel;
    slot.at[at] = sum.largest;
    slot.at[at + channels] = sum.weight;
    slot.at[at + 2 * channels] = sum.weighted;
}

void load_state(uint from) {
    if (from == NO_SLOT) return;
    Floats slot = values_of_slot(state, slot_len, from);
    own = load_sum(slot, 0);
    if (OVERLAP) {
        after = load_sum(slot, 1);
        before = load_sum(slot, 2);
    }
}

void store_state(uint to) {
    if (to == NO_SLOT) return;
    Floats slot = values_of_slot(state, slot_len, to);
    store_sum(slot, 0, own);
    if (OVERLAP) {
        store_sum(slot, 1, after);
        store_sum(slot, 2, before);
    }
}

// The sums with a part of a row, which may be the first of its pool.
Sum with_row(Sum sum, uint row, uint of_pool, uint part) {
    uint column = part * channels + channel;
    float value = x.at[row * PARTS * channels + column];
    float logit = gate.at[row * PARTS * channels + column] + bias.at[of_pool * PARTS * channels + column];
    if (of_pool == 0) return Sum(logit, 1.0, value);
    float largest = max(sum.largest, logit);
    float factor = exp(sum.largest - largest);
    float weight = exp(logit - largest);
    return Sum(largest, fma(sum.weight, factor, weight), fma(sum.weighted, factor, weight * value));
}

float mean_of(uint position) {
    if (!OVERLAP || position < pool) return own.weighted / own.weight;
    float largest = max(own.largest, before.largest);
    float of_own = exp(own.largest - largest);
    float of_before = exp(before.largest - largest);
    float weight = fma(own.weight, of_own, before.weight * of_before);
    return fma(own.weighted, of_own, before.weighted * of_before) / weight;
}

void main() {
    uint run = gl_WorkGroupID.y;
    if (run >= step.runs || channel >= channels) return;
    uint first = step.run_starts.at[run];
    load_state(slot_before(step, first));
    for (uint row = first; row < run_end(step, run); row++) {
        uint position = step.positions.at[row];
        uint of_pool = position % pool;
        if (of_pool == 0) before = after;
        own = with_row(own, row, of_pool, PARTS - 1);
        if (OVERLAP) after = with_row(after, row, of_pool, 0);
        y.at[row * channels + channel] = mean_of(position);
        store_state(step.state_to.at[row]);
    }
}
