#version 460
// xIELU of a, with the parameters in b: see `Xielu`.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/elementwise.glsl>

void main() {
    uint i;
    if (!find_value(i)) return;
    float x = a.at[i];
    float curve = x > 0.0 ? b.at[0] * x * x : b.at[1] * (exp(min(x, b.at[3])) - 1.0 - x);
    y.at[i] = curve + b.at[2] * x;
}
