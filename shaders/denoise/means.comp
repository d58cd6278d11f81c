#version 460
// The part of each row's mean embedding that the tokens of a piece of the vocabulary give: one workgroup for some rows,
// some runs of columns, and a piece. Each invocation has one run. A row of the table is decoded once for all rows, and
// only if one of them needs it.

#extension GL_GOOGLE_include_directive : require
#include <denoise/terms.glsl>
#include <quant/matrix.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;

layout(push_constant, scalar) uniform Push {
    Matrix table;
    Floats logits;
    TermsOfRows terms;
    FloatQuads means;      // [row, piece, runs * 32]
    Step step;
    uint row_kind;
    uint vocab_size;
    uint runs;
    uint piece_tokens;
    uint pieces;
    float negligible;      // probabilities below it count as 0
    float scale;
};

const uint ROWS = 4;
const uint SPAN_TOKENS = 64;

shared float shares[ROWS][SPAN_TOKENS];

// The probabilities of the tokens of a span, scaled.
void form_shares(uint first_row, uint rows, uint start, uint end) {
    for (uint i = gl_LocalInvocationID.x; i < ROWS * SPAN_TOKENS; i += WORKGROUP_SIZE) {
        uint row = i / SPAN_TOKENS;
        uint token = start + i % SPAN_TOKENS;
        float probability = 0.0;
        if (row < rows && token < end) {
            Terms of_row = terms.of[first_row + row];
            float logit = row_logits(logits, first_row + row, vocab_size).at[token];
            if (of_row.share > 0.0) probability = exp((logit - of_row.largest) * of_row.inverse) * of_row.share;
        }
        shares[row][i % SPAN_TOKENS] = probability < negligible ? 0.0 : probability * scale;
    }
}

void main() {
    uint first_row = gl_WorkGroupID.y * ROWS;
    uint all_rows = count_rows(step, row_kind);
    if (first_row >= all_rows) return;
    uint rows = min(ROWS, all_rows - first_row);
    uint run_index = gl_WorkGroupID.x * WORKGROUP_SIZE + gl_LocalInvocationID.x;
    uint piece = gl_WorkGroupID.z;
    uint end = min((piece + 1) * piece_tokens, vocab_size);
    vec4 sums[ROWS][QUADS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) [[unroll]] for (uint q = 0; q < QUADS; q++) sums[r][q] = vec4(0.0);
    for (uint start = piece * piece_tokens; start < end; start += SPAN_TOKENS) {
        barrier();
        form_shares(first_row, rows, start, end);
        barrier();
        if (run_index >= runs) continue;
        for (uint offset = 0; offset < min(SPAN_TOKENS, end - start); offset++) {
            float of_rows[ROWS];
            float all = 0.0;
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                of_rows[r] = shares[r][offset];
                all = max(all, abs(of_rows[r]));
            }
            if (all == 0.0) continue;
            Run run = load_run(table, uint64_t(start + offset) * runs + run_index);
            [[unroll]] for (uint q = 0; q < QUADS; q++) {
                vec4 value = values(run, q);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    // Skipped for a row without the token, so that its bits do not depend on the other rows.
                    if (of_rows[r] != 0.0) sums[r][q] = fma(vec4(of_rows[r]), value, sums[r][q]);
                }
            }
        }
    }
    if (run_index >= runs) return;
    for (uint r = 0; r < rows; r++) {
        uint64_t row_and_piece = uint64_t(first_row + r) * pieces + piece;
        FloatQuads y = FloatQuads(uint64_t(means) + (row_and_piece * runs + run_index) * 128);
        [[unroll]] for (uint q = 0; q < QUADS; q++) y.at[q] = sums[r][q];
    }
}
