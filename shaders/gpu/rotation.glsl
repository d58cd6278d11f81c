// Rotary position embedding of a pair. It gives the same bits in every shader.

#include <gpu/trigonometry.glsl>

vec2 rotate(vec2 pair, uint position, float frequency, float magnitude) {
    precise float angle = float(position) * frequency;
    precise vec2 sine_cosine = sin_cos(angle) * magnitude;
    precise vec2 rotated = vec2(pair.x * sine_cosine.y - pair.y * sine_cosine.x, pair.x * sine_cosine.x + pair.y * sine_cosine.y);
    return rotated;
}
