// What the passes of denoising share: the terms from which a row's probabilities are computed.

#include <gpu/common.glsl>

// probability[v] = exp((logits[v] - largest) * inverse) * share
struct Terms {
    float largest;
    float inverse;
    float share; // 0 for a row that is not a distribution
};

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer TermsOfRows { Terms of[]; };

// The logits of a row. The address has 64 bits, since all rows together can exceed 4 GiB.
Floats row_logits(Floats logits, uint row, uint vocab_size) {
    return Floats(uint64_t(logits) + uint64_t(row) * vocab_size * 4);
}
