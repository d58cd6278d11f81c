#version 460
// Gated linear unit: the activation of a, times b.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    float gate = a.at[i];
    // Both activations are the gate times a logistic function, as in `glu.rs`.
    float z = variant == 0 ? gate : 1.595769 * (gate + 0.044715 * gate * gate * gate);
    y.at[i] = gate / (1.0 + exp(-z)) * b.at[i];
}
