#version 460
// The best token and the entropy of each row, and the terms of its probabilities: one workgroup per row. It also copies
// the parameters of sampling to where the passes of `sample_token` read them.

#extension GL_GOOGLE_include_directive : require
#include <denoise/terms.glsl>
#include <gpu/reduce.glsl>

layout(push_constant, scalar) uniform Push {
    Floats logits;
    Floats statistics;     // [row, 3]: best token, sampled token, entropy
    TermsOfRows terms;
    Words params;          // [row, PARAMS_WORDS]
    Step step;
    uint row_kind;
    uint vocab_size;
};

const uint PARAMS_WORDS = 8;
const float NO_NUMBER = uintBitsToFloat(0x7fc00000u);

bool is_bad(float logit) {
    uint bits = floatBitsToUint(logit);
    return (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
}

void copy_params(uint row) {
    for (uint word = gl_LocalInvocationID.x; word < PARAMS_WORDS; word += WORKGROUP_SIZE) {
        params.at[row * PARAMS_WORDS + word] = step.denoised.at[row * (PARAMS_WORDS + 1) + word];
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint lane = gl_LocalInvocationID.x;
    copy_params(row);
    Floats values = row_logits(logits, row, vocab_size);
    float inverse = uintBitsToFloat(step.denoised.at[row * (PARAMS_WORDS + 1) + PARAMS_WORDS]);

    float largest = -1.0 / 0.0;
    float bad = 0.0;
    uint best = 0xffffffffu;
    for (uint token = lane; token < vocab_size; token += WORKGROUP_SIZE) {
        float logit = values.at[token];
        if (is_bad(logit)) bad = 1.0;
        if (logit > largest) {
            largest = logit;
            best = token;
        }
    }
    float own_largest = largest;
    bad = workgroup_max(bad);
    largest = workgroup_max(largest);
    if (bad > 0.0 || largest == -1.0 / 0.0) {
        if (lane != 0) return;
        terms.of[row] = Terms(0.0, inverse, 0.0);
        statistics.at[row * 3] = 0.0;
        statistics.at[row * 3 + 2] = NO_NUMBER;
        return;
    }
    // Vocabularies are small enough for float32 to represent the numbers of tokens: the first is the largest negated.
    float first = workgroup_max(own_largest == largest ? -float(best) : -1.0 / 0.0);

    float sum = 0.0;
    float product = 0.0;
    for (uint token = lane; token < vocab_size; token += WORKGROUP_SIZE) {
        // A product of 0 and minus infinity would not be a number.
        float x = max((values.at[token] - largest) * inverse, -100.0);
        float power = exp(x);
        sum += power;
        product = fma(power, x, product);
    }
    sum = workgroup_sum(sum);
    product = workgroup_sum(product);
    if (lane != 0) return;
    terms.of[row] = Terms(largest, inverse, 1.0 / sum);
    statistics.at[row * 3] = -first;
    statistics.at[row * 3 + 2] = log(sum) - product / sum;
}
