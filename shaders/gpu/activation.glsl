// The activations of `glu.rs`. All but the bilinear one are a logistic function of the gate, mostly times the gate, times the
// other value.

float activate(uint variant, float gate, float up) {
    if (variant == 4) return gate * up;
    precise float z = gate;
    if (variant == 1) z = 1.595769 * (gate + 0.044715 * gate * gate * gate);
    if (variant == 2) {
        gate = min(gate, 7.0);
        up = clamp(up, -7.0, 7.0) + 1.0;
        z = 1.702 * gate;
    }
    if (variant == 3) gate = 1.0;
    // `precise` keeps the compiler from merging this with other code: the bits are the same in every shader.
    precise float activated = gate / (1.0 + exp(-z)) * up;
    return activated;
}
