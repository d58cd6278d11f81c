// The activations of `glu.rs`: all are the gate times a logistic function, times the value beside the gate.

float activate(uint variant, float gate, float up) {
    precise float z = gate;
    if (variant == 1) z = 1.595769 * (gate + 0.044715 * gate * gate * gate);
    if (variant == 2) {
        gate = min(gate, 7.0);
        up = clamp(up, -7.0, 7.0) + 1.0;
        z = 1.702 * gate;
    }
    // Nothing is joined with what the shader did before: the bits are the same wherever it stands.
    precise float activated = gate / (1.0 + exp(-z)) * up;
    return activated;
}
