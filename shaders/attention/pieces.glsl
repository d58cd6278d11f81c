// A row's context is divided into pieces by absolute position. Each piece has its own softmax. Pieces are merged in
// their order with the same operations, either by one workgroup that loops over them or by another shader. So the bits
// of a result do not depend on how the work was divided.

layout(constant_id = 19) const uint PIECE_TOKENS = 256;

// Scores seen so far: their largest, and the sum of exp(score - largest).
struct Softmax {
    float largest;
    float sum;
};

// The factors of the values accumulated so far and of those of the next piece when the two are merged.
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
