// Rotary position embedding of a pair. It gives the same bits in every shader.

#include <gpu/trigonometry.glsl>

// The fields of `RopeAxes`.
layout(constant_id = 27) const uint AXES = 0;
layout(constant_id = 28) const uint FIRST_BOUND = 0;
layout(constant_id = 29) const uint SECOND_BOUND = 0;

// The position by which a pair of a row is rotated.
uint rope_position(Step step, uint row, uint pair) {
    if (AXES == 0) return step.positions.at[row];
    uint axis = 0;
    if (AXES == 1) {
        axis = pair < FIRST_BOUND ? 0 : pair < SECOND_BOUND ? 1 : 2;
    } else if (pair % 3 == 1 && pair < FIRST_BOUND) {
        axis = 1;
    } else if (pair % 3 == 2 && pair < SECOND_BOUND) {
        axis = 2;
    }
    return step.rope_positions.at[3 * row + axis];
}

vec2 rotate(vec2 pair, uint position, float frequency, float magnitude) {
    precise float angle = float(position) * frequency;
    precise vec2 sine_cosine = sin_cos(angle) * magnitude;
    precise vec2 rotated = vec2(pair.x * sine_cosine.y - pair.y * sine_cosine.x, pair.x * sine_cosine.x + pair.y * sine_cosine.y);
    return rotated;
}
