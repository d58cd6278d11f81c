#version 460
// Merges the pieces of each row's context in their order. One workgroup for each head of each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>
#include <attention/heads.glsl>
#include <attention/runs.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 6) const uint SELECTED = 0; // as in `attend.comp`

layout(push_constant, scalar) uniform Push {
    uint64_t partials;
    Floats y;
    Step step;
    uint64_t sinks;        // 0: none
    uint n_heads;
    uint window;
    uint kind_of_window;
    uint max_pieces;
    uint most_selected;    // 0: all
};

#include <attention/selection.glsl>

// Pieces whose loads are under way at once.
const uint AHEAD = 8;

void main() {
    uint row;
    uint head = gl_WorkGroupID.x;
    if (!find_row(step, gl_WorkGroupID.y, row)) return;
    uvec2 seen = seen_by(step, row, window, kind_of_window);
    seen = cells_seen(seen);
    uint last_piece = (seen.y - 1) / PIECE_TOKENS;
    for (uint quad = gl_LocalInvocationID.x; quad < VALUE_QUADS; quad += WORKGROUP_SIZE) {
        Softmax softmax = Softmax(-1.0 / 0.0, 0.0);
        vec4 gathered = vec4(0.0);
        for (uint first = seen.x / PIECE_TOKENS; first <= last_piece; first += AHEAD) {
            vec4 softmaxes[AHEAD];
            vec4 sums[AHEAD];
            [[unroll]] for (uint p = 0; p < AHEAD; p++) {
                uint piece = min(first + p, last_piece);
                FloatQuads partial = partial_of(partials, gl_WorkGroupID.y * n_heads + head, max_pieces, piece);
                softmaxes[p] = partial.at[0];
                sums[p] = partial.at[1 + quad];
            }
            [[unroll]] for (uint p = 0; p < AHEAD; p++) {
                if (first + p > last_piece) break;
                vec2 factors = merge(softmax, Softmax(softmaxes[p].x, softmaxes[p].y));
                gathered = merge_values(gathered, sums[p], factors);
            }
        }
        write_result(y, sinks, row * n_heads + head, head, quad, gathered, softmax);
    }
}
