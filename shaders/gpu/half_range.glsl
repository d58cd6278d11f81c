// How float32 values are brought into the range of float16, which ends at 65504.

// The biased exponent of the power of two that scales the largest magnitude to 2^14 .. 2^15. It is clamped so that the
// power and its inverse are normal numbers.
uint exponent_of(float largest) {
    uint exponent = floatBitsToUint(largest) >> 23 & 255u;
    return clamp(exponent, 15u, 254u) - 14u;
}

// The power of two with this biased exponent, and its inverse.
float power_of(uint exponent) {
    return uintBitsToFloat(exponent << 23);
}

float inverse_power_of(uint exponent) {
    return uintBitsToFloat((254u - exponent) << 23);
}

// Eight values, rounded.
uvec4 pack_halves(vec4 first, vec4 second) {
    return uvec4(packHalf2x16(first.xy), packHalf2x16(first.zw), packHalf2x16(second.xy), packHalf2x16(second.zw));
}
