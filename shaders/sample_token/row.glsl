// Shared by the passes over rows of logits: the parameters of a row, its state, and the weights of tokens.

#include <gpu/common.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

const uint NOTHING = 0;
const uint BEST = 1;

// The parameters of a row, as encoded by `gpu.rs`.
struct Params {
    uint mode;
    float inverse_temperature;
    uint top_k; // 0 keeps all
    uint floor; // the largest magnitude that min_p keeps
    uint64_t top_p; // a fraction with 64 bits; 0 keeps all
    uint64_t random;
};

// The result of `truncate.comp` for a row.
struct State {
    uint has_result;
    float largest;
    uint cutoff_magnitude;
    uint cutoff_token;
};

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer ParamsOfRows { Params of[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer States { State of[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Sums { uint64_t at[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsOfRows params;
    States states;
    Sums best; // one for each tile: see `rank`
    Sums sums; // one for each tile: the sum of the kept weights
    Floats sampled;
    Step step;
    uint row_kind;
    uint vocab_size;
    uint tiles;
    uint tile;
};

// The logits of a row. The address has 64 bits, since all rows together can exceed 4 GiB.
Floats row_logits(uint row) {
    return Floats(uint64_t(logits) + uint64_t(row) * vocab_size * 4);
}

// A number that is larger the earlier a token ranks: by logit, then by the lower token number. NaN and plus infinity
// rank first.
uint64_t rank(float logit, uint token) {
    uint bits = floatBitsToUint(logit);
    if (bits == 0x80000000u) bits = 0; // -0 equals 0
    uint order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) order = 0xffffffffu;
    return (uint64_t(order) << 32) | uint64_t(~token);
}

// The distance of the scaled logit from the largest, as the bits of a positive float. The bits have the order of the
// floats.
uint magnitude(float logit, float largest, float inverse_temperature) {
    precise float scaled = (logit - largest) * inverse_temperature;
    return floatBitsToUint(scaled) & 0x7fffffffu;
}

// The same operations as `weight` in weight.rs.
uint64_t weight(uint magnitude) {
    float x = -uintBitsToFloat(magnitude);
    precise float inside = max(x, -87.0);
    precise float scaled = inside * 1.44269504;
    precise float rounded = scaled + 12582912.0;
    precise float n = rounded - 12582912.0;
    precise float r = (inside - n * 0.6933594) - n * -2.1219444e-4;
    precise float series = 0.00138888890 + r * 0.00019841270;
    series = 0.0083333340 + r * series;
    series = 0.041666668 + r * series;
    series = 0.16666667 + r * series;
    series = 0.5 + r * series;
    series = 1.0 + r * series;
    series = 1.0 + r * series;
    float power = uintBitsToFloat((floatBitsToUint(rounded) << 23) + 0x3f800000u);
    precise float exponential = series * power;
    uint bits = x >= -87.0 ? floatBitsToUint(exponential) : 0;
    uint64_t mantissa = uint64_t((bits & 0x7fffffu) | 0x800000u);
    return (mantissa << 17) >> min(127u - (bits >> 23), 63u);
}

// The high 64 bits of the product of two 64-bit numbers.
uint64_t product_high(uint64_t a, uint64_t b) {
    const uint64_t LOW = uint64_t(0xffffffffu);
    uint64_t low = (a & LOW) * (b & LOW);
    uint64_t first = (a >> 32) * (b & LOW) + (low >> 32);
    uint64_t second = (a & LOW) * (b >> 32) + (first & LOW);
    return (a >> 32) * (b >> 32) + (first >> 32) + (second >> 32);
}

shared uint64_t numbers[WORKGROUP_SIZE];

// The sum over the invocations of the workgroup. All invocations must call it.
uint64_t workgroup_sum(uint64_t number) {
    uint lane = gl_LocalInvocationID.x;
    numbers[lane] = number;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) numbers[lane] += numbers[lane + stride];
        barrier();
    }
    uint64_t sum = numbers[0];
    barrier();
    return sum;
}

// The maximum over the invocations of the workgroup. All invocations must call it.
uint64_t workgroup_max(uint64_t number) {
    uint lane = gl_LocalInvocationID.x;
    numbers[lane] = number;
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) numbers[lane] = max(numbers[lane], numbers[lane + stride]);
        barrier();
    }
    uint64_t largest = numbers[0];
    barrier();
    return largest;
}
