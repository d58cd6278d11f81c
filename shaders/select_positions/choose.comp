#version 460
// The positions of the pools of each row with the highest scores, then those after its last whole pool, or these pools themselves,
// ascending: one workgroup for each row, or for each head of each row. The lowest of these scores is found byte by byte, from the highest byte on: how many scores of those with the same
// higher bytes have each value of the next.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const bool OF_POOLS = false; // the pools themselves
layout(constant_id = 2) const bool HAS_OWN_POOL = false; // the last pool has a score even if it is not whole

layout(push_constant, scalar) uniform Push {
    Words scores;
    Floats y;
    Step step;
    uint most;             // positions or pools of a list
    uint all_up_to;        // the most positions of a row that selects all
    uint most_pools;       // pools of a list that are selected by their scores
    uint pool;             // positions of a pool
    uint context;          // scores of a list
};

shared uint counts[256];
shared uint found_lowest;
shared uint found_wanted;
shared uint lanes[WORKGROUP_SIZE];

// The lowest selected score, and how many of the pools with exactly this score are selected.
uvec2 lowest_selected(uint first_score, uint pools) {
    uint lane = gl_LocalInvocationID.x;
    uint lowest = 0;
    uint known = 0;        // the bits of `lowest` that are found
    uint wanted = most_pools;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint value = lane; value < 256; value += WORKGROUP_SIZE) counts[value] = 0;
        barrier();
        for (uint index = lane; index < pools; index += WORKGROUP_SIZE) {
            uint score = scores.at[first_score + index];
            if ((score & known) == lowest) atomicAdd(counts[(score >> shift) & 255], 1);
        }
        barrier();
        if (lane == 0) {
            uint value = 255;
            uint rest = wanted;
            while (value > 0 && counts[value] < rest) {
                rest -= counts[value];
                value--;
            }
            found_lowest = lowest | value << shift;
            found_wanted = rest;
        }
        barrier();
        lowest = found_lowest;
        wanted = found_wanted;
        known |= 255u << shift;
        barrier();
    }
    return uvec2(lowest, wanted);
}

// The sum of the values of this and all earlier invocations.
uint sum_up_to(uint value) {
    uint lane = gl_LocalInvocationID.x;
    lanes[lane] = value;
    barrier();
    for (uint distance = 1; distance < WORKGROUP_SIZE; distance *= 2) {
        uint earlier = lane >= distance ? lanes[lane - distance] : 0;
        barrier();
        lanes[lane] += earlier;
        barrier();
    }
    return lanes[lane];
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step.rows) return;
    uint lane = gl_LocalInvocationID.x;
    uint list = row * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint seen = step.positions.at[row] + 1;
    uint pools = HAS_OWN_POOL ? (seen + pool - 1) / pool : seen / pool;
    if (seen <= all_up_to) {
        uint all = OF_POOLS ? pools : seen;
        for (uint i = lane; i < most; i += WORKGROUP_SIZE) y.at[list * most + i] = i < all ? float(i) : 0.0;
        return;
    }
    uint numbers = OF_POOLS ? 1 : pool; // of a pool
    uint first_score = list * context;
    uvec2 lowest = lowest_selected(first_score, pools);
    uint written = 0;
    uint wanted = lowest.y;
    for (uint start = 0; start < pools; start += WORKGROUP_SIZE) {
        uint own = start + lane;
        uint score = own < pools ? scores.at[first_score + own] : 0;
        bool is_above = own < pools && score > lowest.x;
        bool is_equal = own < pools && score == lowest.x;
        // Both counts in one word: a workgroup has far fewer than 65536 invocations.
        uint sums = sum_up_to(is_above ? 1 : is_equal ? 65536 : 0);
        uint all = lanes[WORKGROUP_SIZE - 1];
        // Of the pools up to this one: those above, and of the equal ones as many as are wanted.
        uint equal = min(sums >> 16, wanted);
        uint index = written + (sums & 65535) + equal - 1;
        if (is_above || (is_equal && (sums >> 16) <= wanted)) {
            for (uint i = 0; i < numbers; i++) {
                uint number = own * numbers + i;
                y.at[list * most + index * numbers + i] = HAS_OWN_POOL && number >= seen ? 0.0 : float(number);
            }
        }
        written += (all & 65535) + min(all >> 16, wanted);
        wanted -= min(all >> 16, wanted);
        barrier();
    }
    for (uint i = written * numbers + lane; i < most; i += WORKGROUP_SIZE) {
        uint position = (pools - written) * pool + i;
        y.at[list * most + i] = !OF_POOLS && position < seen ? float(position) : 0.0;
    }
}
