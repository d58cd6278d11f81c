// What the kernels of the products of experts are told: `mat_vec.comp`, `tile.comp`.
//
// The result of a route stands at the route's place, whichever workgroup forms it: [routes, EXPERT_OUTPUTS].

layout(constant_id = 22) const uint COLUMNS = 32;
layout(constant_id = 23) const uint EXPERT_OUTPUTS = 32;
// What becomes of results; see `Kind` in `gpu.rs`.
layout(constant_id = 24) const uint KIND = 0;
// Whether x has a row for each route, or one for all routes of a row.
layout(constant_id = 25) const bool X_OF_ROUTES = false;
// Whether x is multiplied by the route's weight.
layout(constant_id = 26) const bool WEIGHTED = false;
layout(constant_id = 27) const uint ACTIVATION = 0;
// Of each matrix: the rows of its tensor before those of the first expert's, and from an expert's to the next one's.
layout(constant_id = 28) const uint FIRST = 0;
layout(constant_id = 29) const uint EXPERT_STRIDE = 32;
layout(constant_id = 30) const uint SECOND_FIRST = 0;
layout(constant_id = 31) const uint SECOND_STRIDE = 32;

// Constants, since a driver may read from an address before it looks whether anybody asks for what is there.
layout(constant_id = 33) const bool HAS_BIAS = false;
layout(constant_id = 34) const bool HAS_SECOND_BIAS = false;

const uint KIND_ACTIVATE = 1;  // multiplies what stands there, activated
const uint KIND_BOTH = 2;      // both matrices, one to activate the other with

const uint MATRICES = KIND == KIND_BOTH ? 2 : 1;
const uint RUNS = (COLUMNS + 31) / 32;

layout(push_constant, scalar) uniform Push {
    Matrix matrix;
    Matrix second;
    uint64_t x;
    uint64_t y;
    uint64_t routes;
    uint64_t blocks;      // or 0: each route by itself
    Floats bias;          // [places * EXPERT_STRIDE], or none
    Floats second_bias;
    Step step;
    uint row_kind;
};

// Four values of x as a route has them.
vec4 load_routed(uint route, uint column) {
    vec4 quad = load_input(x, COLUMNS, X_OF_ROUTES ? route : route / TOP_K, column);
    if (!WEIGHTED) return quad;
    precise vec4 weighted = quad * weight_of(routes, route);
    return weighted;
}

// The row of an output of the expert at a place in its tensor. Outputs beyond the last stand for the last; their results are not stored.
uint tensor_row(uint place, uint output_row) {
    return place * EXPERT_STRIDE + FIRST + min(output_row, EXPERT_OUTPUTS - 1);
}

uint second_row(uint place, uint output_row) {
    return place * SECOND_STRIDE + SECOND_FIRST + min(output_row, EXPERT_OUTPUTS - 1);
}

Run load_weight(uint place, uint output_row, uint index) {
    return load_run(matrix, uint64_t(tensor_row(place, output_row)) * RUNS + index);
}

Run load_second(uint place, uint output_row, uint index) {
    return load_run(second, uint64_t(second_row(place, output_row)) * RUNS + index);
}

// Stores a result that has its bias still to come, and perhaps that of the second matrix beside it.
void store_result(uint place, uint route, uint output_row, float result, float beside) {
    Floats stored = Floats(y + (uint64_t(route) * EXPERT_OUTPUTS + output_row) * 4);
    if (HAS_BIAS) result += bias.at[tensor_row(place, output_row)];
    if (KIND == KIND_ACTIVATE) result = activate(ACTIVATION, stored.at[0], result);
    if (KIND == KIND_BOTH) {
        if (HAS_SECOND_BIAS) beside += second_bias.at[second_row(place, output_row)];
        result = activate(ACTIVATION, result, beside);
    }
    stored.at[0] = result;
}
