// The activations of `glu.rs` and `activate.rs`. Most are a logistic function of the gate, mostly times the gate, times the
// other value.

#include <gpu/softplus.glsl>

// e^x by explicit operations, which no compiler merges with those that compute x.
float power_of_e(float x) {
    precise float exponent = x * 1.442695;
    precise float power = exp2(exponent);
    return power;
}

// The hyperbolic tangent, as `tanh` in `lanes.rs` computes it.
float hyperbolic_tangent(float x) {
    precise float square = x * x;
    precise float series = -5.7049887e-3;
    series = series * square + 2.0639088e-2;
    series = series * square - 5.3739716e-2;
    series = series * square + 1.3331442e-1;
    series = series * square - 3.3333282e-1;
    precise float near = x + x * square * series;
    precise float far = 1.0 - 2.0 / (1.0 + power_of_e(2.0 * x));
    return abs(x) < 0.625 ? near : far;
}

float activate(uint variant, float gate, float up) {
    if (variant == 4) return gate * up;
    if (variant == 5) return softplus(gate) * up;
    if ((variant & 255u) == 6) {
        float limit = float(variant >> 8);
        precise float limited = min(gate / (1.0 + power_of_e(-gate)), limit) * clamp(up, -limit, limit);
        return limited;
    }
    if ((variant & 255u) == 7) {
        float limit = float(variant >> 8);
        gate = min(gate, limit);
        up = clamp(up, -limit, limit);
    }
    precise float z = gate;
    if ((variant & 255u) == 8) {
        float beta = float(variant >> 8 & 4095u);
        float linear = float(variant >> 20);
        precise float bounded_gate = beta * hyperbolic_tangent(gate / beta);
        precise float bounded_up = linear * hyperbolic_tangent(up / max(linear, 1.0));
        gate = bounded_gate;
        if (linear > 0.0) up = bounded_up;
    }
    if (variant == 1) z = 1.595769 * (gate + 0.044715 * gate * gate * gate);
    if (variant == 2) {
        gate = min(gate, 7.0);
        up = clamp(up, -7.0, 7.0) + 1.0;
        z = 1.702 * gate;
    }
    if (variant == 3) gate = 1.0;
    // `precise` keeps the compiler from merging this with other code: the bits are the same in every shader.
    precise float activated = gate / (1.0 + power_of_e(-z)) * up;
    return activated;
}

// x/2 (1 + erf(x / sqrt(2))), as `gelu` in `activate.rs` computes it.
float gelu(float x) {
    precise float z = abs(x) * 0.70710677;
    precise float t = 1.0 / (1.0 + 0.3275911 * z);
    precise float series = t * (0.2548296 + t * (-0.28449674 + t * (1.4214137 + t * (-1.453152 + t * 1.0614054))));
    precise float tail = 0.5 * x * series * exp(-z * z);
    return x < 0.0 ? tail : x - tail;
}

// An activation without a gate: see `Pointwise`.
float activate_alone(uint variant, float x) {
    if (variant == 100) return max(x, 0.0) * max(x, 0.0);
    if (variant == 101) return gelu(x);
    return activate(variant, x, 1.0);
}
