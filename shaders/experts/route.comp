#version 460
// Selects the best experts of each row, one workgroup per row.
//
// Experts are compared by keys: integers in the order of the preferences. This gives a total order for any logits,
// including NaN. Key 0 marks an expert that is excluded or already selected.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>
#include <gpu/softplus.glsl>

layout(constant_id = 1) const uint N_EXPERTS = 1;
layout(constant_id = 2) const uint TOP_K = 1;
layout(constant_id = 3) const uint SCORING = 1;
layout(constant_id = 4) const uint N_GROUPS = 1;
layout(constant_id = 5) const uint USED_GROUPS = 1;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SCALES = false;
layout(constant_id = 8) const bool RENORMALISE = false;
layout(constant_id = 9) const bool IS_GIVEN = false; // the experts of each row

layout(push_constant, scalar) uniform Push {
    Floats logits;  // [rows, N_EXPERTS]
    Floats bias;    // [N_EXPERTS]
    Floats scales;  // [N_EXPERTS]
    Floats given;   // [rows, TOP_K]
    Floats routes;  // [rows, 2 TOP_K]
    Step step;
    uint row_kind;
    float scale;
};

// The values of `Scoring`.
const uint SIGMOID = 0;
const uint SOFTMAX = 1;

const uint GROUP_SIZE = N_EXPERTS / N_GROUPS;
const float SMALLEST = 1.17549435e-38;

shared float scores[N_EXPERTS];
shared float preferences[N_EXPERTS];
shared uint keys[N_EXPERTS];
shared uint group_keys[N_GROUPS];
shared uint chosen[TOP_K];
shared uvec2 best_of_lanes[WORKGROUP_SIZE];

uint key_of(float value) {
    uint bits = floatBitsToUint(value);
    bool negative = (bits & 0x80000000u) != 0;
    // Larger magnitude bits than those of infinity are NaN.
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
    return negative ? ~bits : bits | 0x80000000u;
}

bool is_better(uvec2 a, uvec2 b) {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// The better of two (key, index) pairs. Of equal keys the lower index wins.
uvec2 better(uvec2 a, uvec2 b) {
    return is_better(b, a) ? b : a;
}

// The index of the best candidate of the workgroup. All invocations must call it.
uint workgroup_best(uvec2 candidate) {
    uint lane = gl_LocalInvocationID.x;
    best_of_lanes[lane] = candidate;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) best_of_lanes[lane] = better(best_of_lanes[lane], best_of_lanes[lane + stride]);
        barrier();
    }
    uint best = best_of_lanes[0].y;
    barrier();
    return best;
}

float score_of(float x, float largest, float sum) {
    if (SCORING == SOFTMAX) return exp(x - largest) / sum;
    return SCORING == SIGMOID ? 1.0 / (1.0 + exp(-x)) : sqrt(softplus(x));
}

void score(uint64_t row) {
    uint lane = gl_LocalInvocationID.x;
    Floats of_row = Floats(row);
    float largest = uintBitsToFloat(0xff800000u);
    float sum = 0.0;
    if (SCORING == SOFTMAX) {
        for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) largest = max(largest, of_row.at[e]);
        largest = workgroup_max(largest);
        for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) sum += exp(of_row.at[e] - largest);
        sum = workgroup_sum(sum);
    }
    for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) {
        float x = of_row.at[e];
        scores[e] = score_of(x, largest, sum);
        preferences[e] = HAS_BIAS ? scores[e] + bias.at[e] : scores[e];
        keys[e] = key_of(preferences[e]);
    }
    barrier();
}

// The score of a group: its best preference with a softmax, otherwise the sum of the two best.
float group_score(uint group) {
    float first = preferences[group * GROUP_SIZE];
    if (GROUP_SIZE == 1) return first;
    float second = preferences[group * GROUP_SIZE + 1];
    if (second > first) {
        float larger = second;
        second = first;
        first = larger;
    }
    for (uint e = group * GROUP_SIZE + 2; e < (group + 1) * GROUP_SIZE; e++) {
        float preference = preferences[e];
        second = max(second, min(first, preference));
        first = max(first, preference);
    }
    return SCORING == SOFTMAX ? first : first + second;
}

// Excludes all experts that are not in the best groups.
void exclude_groups() {
    uint lane = gl_LocalInvocationID.x;
    for (uint g = lane; g < N_GROUPS; g += WORKGROUP_SIZE) group_keys[g] = key_of(group_score(g));
    barrier();
    for (uint i = 0; i < USED_GROUPS; i++) {
        uvec2 candidate = uvec2(0, N_GROUPS - 1);
        for (uint g = lane; g < N_GROUPS; g += WORKGROUP_SIZE) candidate = better(candidate, uvec2(group_keys[g], g));
        uint best = workgroup_best(candidate);
        // Groups whose key is not 0 at the end are excluded.
        if (lane == 0) group_keys[best] = 0;
        barrier();
    }
    for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) {
        if (group_keys[e / GROUP_SIZE] != 0) keys[e] = 0;
    }
    barrier();
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint lane = gl_LocalInvocationID.x;
    score(uint64_t(logits) + uint64_t(row) * N_EXPERTS * 4);
    if (USED_GROUPS < N_GROUPS) exclude_groups();
    if (IS_GIVEN) {
        for (uint k = lane; k < TOP_K; k += WORKGROUP_SIZE) chosen[k] = min(uint(given.at[row * TOP_K + k]), N_EXPERTS - 1);
        barrier();
    }
    for (uint k = IS_GIVEN ? TOP_K : 0; k < TOP_K; k++) {
        uvec2 candidate = uvec2(0, N_EXPERTS - 1);
        for (uint e = lane; e < N_EXPERTS; e += WORKGROUP_SIZE) candidate = better(candidate, uvec2(keys[e], e));
        uint best = workgroup_best(candidate);
        if (lane == 0) {
            chosen[k] = best;
            keys[best] = 0;
        }
        barrier();
    }

    float divisor = 1.0;
    if (RENORMALISE) {
        float sum = 0.0;
        for (uint k = 0; k < TOP_K; k++) sum += scores[chosen[k]];
        // All scores may be 0, and then so is their sum.
        divisor = max(sum, SMALLEST);
    }
    Floats of_row = Floats(uint64_t(routes) + uint64_t(row) * TOP_K * 8);
    for (uint k = lane; k < TOP_K; k += WORKGROUP_SIZE) {
        uint expert = chosen[k];
        of_row.at[k] = float(expert);
        of_row.at[TOP_K + k] = scores[expert] / divisor * scale * (HAS_SCALES ? scales.at[expert] : 1.0);
    }
}
