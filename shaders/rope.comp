#version 460
// Rotary position embedding of one value: one invocation for each pair of each head, and for each value that is not
// rotated.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/rotation.glsl>

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Floats frequencies;
    Step step;
    uint row_kind;
    uint width;
    uint head_dim;
    uint pairs;
    uint distance_of_pair;
    uint pool; // positions that are rotated as the first of them
    float magnitude;
};

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint per_head = head_dim - pairs;
    uint index = gl_GlobalInvocationID.x;
    if (index >= width / head_dim * per_head) return;
    uint start = row * width + index / per_head * head_dim;
    uint pair = index % per_head;
    if (pair >= pairs) {
        uint rest = start + pair + pairs;
        y.at[rest] = x.at[rest];
        return;
    }
    uint first = start + pair / distance_of_pair * 2 * distance_of_pair + pair % distance_of_pair;
    uint second = first + distance_of_pair;
    vec2 values = vec2(x.at[first], x.at[second]);
    uint position = rope_position(step, row, pair);
    vec2 rotated = rotate(values, position - position % pool, frequencies.at[pair], magnitude);
    y.at[first] = rotated.x;
    y.at[second] = rotated.y;
}
