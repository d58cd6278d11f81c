// The heads of an attention over `attention/cache.glsl`, and how results are written.

#include <attention/sizes.glsl>

const uint KEY_QUADS = KEY_STRIDE / 4;
const uint VALUE_QUADS = (VALUE_DIM + 3) / 4;

// The partial result of a head of a row in a piece: [row, head, piece] records of (largest, sum, -, -) and the
// accumulated values.
FloatQuads partial_of(uint64_t partials, uint row_and_head, uint max_pieces, uint piece) {
    return FloatQuads(partials + (uint64_t(row_and_head) * max_pieces + piece) * ((VALUE_QUADS + 1) * 16));
}

void write_partial(uint64_t partials, uint row_and_head, uint max_pieces, uint piece, uint quad, vec4 gathered,
                   Softmax softmax) {
    FloatQuads partial = partial_of(partials, row_and_head, max_pieces, piece);
    if (quad == 0) partial.at[0] = vec4(softmax.largest, softmax.sum, 0.0, 0.0);
    partial.at[1 + quad] = gathered;
}

// Writes four values of a head of a row whose context is complete. `sinks` is the address of the scores, one for each
// head, that join the softmax now, or 0.
void write_result(Floats y, uint64_t sinks, uint row_and_head, uint head, uint quad, vec4 gathered, Softmax softmax) {
    if (sinks != 0) gathered *= merge(softmax, Softmax(Floats(sinks).at[head], 1.0)).x;
    vec4 normalised = gathered / softmax.sum;
    uint start = row_and_head * VALUE_DIM + quad * 4;
    [[unroll]] for (uint c = 0; c < 4; c++) if (quad * 4 + c < VALUE_DIM) y.at[start + c] = normalised[c];
}
