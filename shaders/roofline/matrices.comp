#version 460
// Multiplies matrices of float16, summed in float32, in registers only.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include <gpu/common.glsl>

layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;

layout(push_constant, scalar) uniform Push {
    Floats result;
    uint rounds;
    float factor;
};

const uint CHAINS = 4;

void main() {
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a =
        coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>(float16_t(factor));
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b =
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>(float16_t(factor));
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[CHAINS];
    [[unroll]] for (uint c = 0; c < CHAINS; c++) {
        sums[c] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(float(c));
    }
    for (uint round = 0; round < rounds; round++) {
        [[unroll]] for (uint c = 0; c < CHAINS; c++) sums[c] = coopMatMulAdd(a, b, sums[c]);
    }
    float sum = 0.0;
    [[unroll]] for (uint c = 0; c < CHAINS; c++) {
        for (uint i = 0; i < sums[c].length(); i++) sum += sums[c][i];
    }
    if (sum == -1.0) result.at[0] = sum;
}
