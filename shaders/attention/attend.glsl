// What `attend.comp` and `attend_tile.comp` share: push constants, visible positions, scores and results. With SPLIT, a
// workgroup computes one piece of the context instead of all.

#include <attention/runs.glsl>

layout(push_constant, scalar) uniform Push {
    Floats query;
    uint64_t keys;
    uint64_t values;
    uint64_t result;       // y, or with SPLIT the partial results
    Step step;
    uint64_t sinks;        // 0: none
    uint64_t slopes;       // 0: none
    uint64_t selected;     // 0: none; else ascending positions of each list
    uint n_heads;
    uint n_kv_heads;
    uint window;           // its positions
    uint kind_of_window;   // 0: none; else see runs.glsl
    uint max_pieces;       // of a row, with SPLIT
    uint most_selected;    // positions of a list; 0: all
    float scale;
    float cap;             // 0: none
};

// Four values of a query, with 0 after its end.
vec4 load_query(uint row_and_head, uint quad) {
    if (KEY_DIM % 4 == 0) {
        return quad * 4 < KEY_DIM ? FloatQuads(uint64_t(query) + uint64_t(row_and_head) * (KEY_DIM * 4)).at[quad] : vec4(0.0);
    }
    vec4 x = vec4(0.0);
    [[unroll]] for (uint c = 0; c < 4; c++) {
        if (quad * 4 + c < KEY_DIM) x[c] = query.at[row_and_head * KEY_DIM + quad * 4 + c];
    }
    return x;
}

// A score of a head of a row at `position` for the key at `of_key`, less what its slope takes for their distance. A head after
// the last one gets any score.
float with_slope(float score, uint head, uint position, uint of_key) {
    if (slopes == 0) return score;
    float distance = float(max(position, of_key) - min(position, of_key));
    return fma(-Floats(slopes).at[min(head, n_heads - 1)], distance, score);
}

// The same score from sums of products.
float score_of(vec4 sums, uint head, uint position, uint of_key) {
    float sum = scale * ((sums.x + sums.y) + (sums.z + sums.w));
    return with_slope(cap > 0.0 ? softcap(sum, cap) : sum, head, position, of_key);
}

// Writes four values of a head of a row: the result over its whole context, or with SPLIT the partial result of a piece,
// which is indexed by the row's number.
void write_gathered(uint row, uint number, uint head, uint piece, uint quad, vec4 gathered, Softmax softmax) {
    if (SPLIT) {
        write_partial(result, number * n_heads + head, max_pieces, piece, quad, gathered, softmax);
    } else {
        write_result(Floats(result), sinks, row * n_heads + head, head, quad, gathered, softmax);
    }
}
