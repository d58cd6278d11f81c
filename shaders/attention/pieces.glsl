// A row's context is cut into pieces by absolute position. Each piece has a softmax of its own; pieces are merged in their
// order, by one workgroup that goes through them or by another shader, with the same operations: so a result's bits do not
// depend on how the work was shared.

const uint PIECE_TOKENS = 256;

// Scores seen so far: their largest, and the sum of exp(score - largest).
struct Softmax {
    float largest;
    float sum;
};

// What values gathered so far, and those of the next piece, are multiplied with when the two are merged.
vec2 merge(inout Softmax all, Softmax piece) {
    float largest = max(all.largest, piece.largest);
    vec2 factors = vec2(exp(all.largest - largest), exp(piece.largest - largest));
    all.sum = fma(all.sum, factors.x, piece.sum * factors.y);
    all.largest = largest;
    return factors;
}

vec4 merge_values(vec4 all, vec4 piece, vec2 factors) {
    return fma(all, vec4(factors.x), piece * factors.y);
}
