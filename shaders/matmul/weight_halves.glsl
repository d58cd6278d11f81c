// Weights rounded to float16.

#include <gpu/half_range.glsl>

// Eight weights of a run: those of the quads 2 `octet` and 2 `octet` + 1. Float32, bfloat16 and numbers with a float32
// scale have a wider range than float16, but the weights of models do not use it.
uvec4 octet_of_halves(Run run, uint octet) {
    vec4 first = values(run, 2 * octet);
    vec4 second = values(run, 2 * octet + 1);
    if (BITS == 32 || BFLOAT || FLOAT_UNITS) {
        first = clamp(first, -65504.0, 65504.0);
        second = clamp(second, -65504.0, 65504.0);
    }
    return pack_halves(first, second);
}
