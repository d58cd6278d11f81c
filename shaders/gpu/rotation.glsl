// Rotary position embedding of a pair, for shaders that rotate on their way: the same bits in each of them.

#include <gpu/trigonometry.glsl>

vec2 rotate(vec2 pair, uint position, float frequency, float magnitude) {
    precise float angle = float(position) * frequency;
    precise vec2 turn = sin_cos(angle) * magnitude;
    precise vec2 rotated = vec2(pair.x * turn.y - pair.y * turn.x, pair.x * turn.x + pair.y * turn.y);
    return rotated;
}
