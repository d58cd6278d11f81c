#version 460
// Multiplies and adds in float32, in registers only, in enough independent chains to hide the latency of one.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(push_constant, scalar) uniform Push {
    Floats result;
    uint rounds;
    float factor;
};

const uint CHAINS = 4;

void main() {
    vec4 sums[CHAINS];
    [[unroll]] for (uint c = 0; c < CHAINS; c++) sums[c] = vec4(gl_GlobalInvocationID.x + c);
    for (uint round = 0; round < rounds; round++) {
        [[unroll]] for (uint c = 0; c < CHAINS; c++) sums[c] = fma(sums[c], vec4(factor), vec4(1.0));
    }
    vec4 sum = sums[0] + sums[1] + sums[2] + sums[3];
    if (sum.x + sum.y + sum.z + sum.w == -1.0) result.at[0] = sum.x;
}
