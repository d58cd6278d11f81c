#version 460
// Finds the token at which the running sum of the kept weights exceeds the random number, one workgroup per row.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"
#include "kept.glsl"

// The invocation whose range of the running sum contains the number, and the offset of the number in that range.
shared uint found;
shared uint64_t found_left;

// Finds the invocation at which the running sum of `number` exceeds `left`. The sum over all invocations must exceed
// `left`.
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
    if (row >= count_rows(step, row_kind) || params.of[row].mode == NOTHING) return;
    State state = states.of[row];
    if (state.has_result != 0) return;
    uint lane = gl_LocalInvocationID.x;
    Floats values = row_logits(row);
    float inverse_temperature = params.of[row].inverse_temperature;

    uint64_t of_tile = lane < tiles ? sums.at[row * tiles + lane] : uint64_t(0);
    uint64_t total = workgroup_sum(of_tile);
    find(of_tile, product_high(total, params.of[row].random));
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
            sampled.at[row] = float(token);
            return;
        }
        left -= share;
    }
}
