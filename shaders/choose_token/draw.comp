#version 460
// The token at which the running sum of what is kept passes the random number: one workgroup a row.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"
#include "kept.glsl"

// Whose share of the sum the number falls into, and how far.
shared uint found;
shared uint64_t found_left;

// Finds the invocation at which the running sum of all their numbers passes `left`, and what is left there. A sum that is
// larger than `left` must come in.
void find(uint64_t number, uint64_t left) {
    uint lane = gl_LocalInvocationID.x;
    numbers[lane] = number;
    barrier();
    for (uint stride = 1; stride < WORKGROUP_SIZE; stride *= 2) {
        uint64_t before = lane >= stride ? numbers[lane - stride] : uint64_t(0);
        barrier();
        numbers[lane] += before;
        barrier();
    }
    uint64_t end = numbers[lane];
    if (end - number <= left && left < end) {
        found = lane;
        found_left = left - (end - number);
    }
    barrier();
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind) || choices.of[row].kind == NOTHING) return;
    State state = states.of[row];
    if (state.settled != 0) return;
    uint lane = gl_LocalInvocationID.x;
    Floats values = row_logits(row);
    float inverse_temperature = choices.of[row].inverse_temperature;

    uint64_t of_tile = lane < tiles ? sums.at[row * tiles + lane] : uint64_t(0);
    uint64_t total = workgroup_sum(of_tile);
    find(of_tile, product_high(total, choices.of[row].random));
    uint64_t left = found_left;
    uint each = tile / WORKGROUP_SIZE;
    uint start = found * tile + lane * each;
    uint end = min(start + each, vocab_size);
    barrier();

    uint64_t sum = 0;
    for (uint token = start; token < end; token++) {
        sum += kept_weight(values.at[token], token, state, inverse_temperature);
    }
    find(sum, left);
    if (lane != found) return;
    left = found_left;
    for (uint token = start; token < end; token++) {
        uint64_t share = kept_weight(values.at[token], token, state, inverse_temperature);
        if (left < share) {
            chosen.at[row] = float(token);
            return;
        }
        left -= share;
    }
}
