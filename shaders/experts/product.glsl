// The interface of the kernels for products with experts (`mat_vec.comp`, `tile.comp`).
//
// Results are stored by route, [routes, EXPERT_OUTPUTS], whichever workgroup computes them.

layout(constant_id = 22) const uint COLUMNS = 32;
layout(constant_id = 23) const uint EXPERT_OUTPUTS = 32;
// See `GateActivation` in `gpu.rs`.
layout(constant_id = 24) const uint GATE_ACTIVATION = 0;
// Whether x has one row for each route (true) or one row for all routes of a row (false).
layout(constant_id = 25) const bool X_OF_ROUTES = false;
// Whether x is multiplied by the weight of the route.
layout(constant_id = 26) const bool WEIGHTED = false;
layout(constant_id = 27) const uint ACTIVATION = 0;
// For each matrix: the row of the first expert's first output in the tensor, and the number of rows from one expert to
// the next.
layout(constant_id = 28) const uint FIRST = 0;
layout(constant_id = 29) const uint EXPERT_STRIDE = 32;
layout(constant_id = 30) const uint SECOND_FIRST = 0;
layout(constant_id = 31) const uint SECOND_STRIDE = 32;

// These are constants because a driver can read from an address speculatively, before the condition is evaluated.
layout(constant_id = 33) const bool HAS_BIAS = false;
layout(constant_id = 34) const bool HAS_SECOND_BIAS = false;

const uint STORED_GATE = 1;  // the product of gate is stored at the output
const uint FUSED = 2;        // `matrix` is gate and `second` is up
const uint UNGATED = 3;      // `matrix` is up, and there is no gate

const uint MATRICES = GATE_ACTIVATION == FUSED ? 2 : 1;
const uint RUNS = (COLUMNS + 31) / 32;

layout(push_constant, scalar) uniform Push {
    Matrix matrix;
    Matrix second;
    uint64_t x;
    uint64_t y;
    uint64_t routes;
    uint64_t blocks;      // 0 if each route is computed by itself
    Floats bias;          // [slots * EXPERT_STRIDE], if HAS_BIAS
    Floats second_bias;
    Step step;
    uint row_kind;
};

// Four values of x for a route.
vec4 load_routed(uint route, uint column) {
    vec4 quad = load_input(x, COLUMNS, X_OF_ROUTES ? route : route / TOP_K, column);
    if (!WEIGHTED) return quad;
    precise vec4 weighted = quad * weight_of(routes, route);
    return weighted;
}

// The tensor row of an output of the expert in a slot. Indices past the last output repeat it; their results are not
// stored.
uint tensor_row(uint slot, uint output_row) {
    return slot * EXPERT_STRIDE + FIRST + min(output_row, EXPERT_OUTPUTS - 1);
}

uint second_row(uint slot, uint output_row) {
    return slot * SECOND_STRIDE + SECOND_FIRST + min(output_row, EXPERT_OUTPUTS - 1);
}

Run load_weight(uint slot, uint output_row, uint index) {
    return load_run(matrix, uint64_t(tensor_row(slot, output_row)) * RUNS + index);
}

Run load_second(uint slot, uint output_row, uint index) {
    return load_run(second, uint64_t(second_row(slot, output_row)) * RUNS + index);
}

// Adds the bias, applies the activation and stores the result. `second_result` is the product with the second
// matrix.
void store_result(uint slot, uint route, uint output_row, float result, float second_result) {
    Floats stored = Floats(y + (uint64_t(route) * EXPERT_OUTPUTS + output_row) * 4);
    if (HAS_BIAS) result += bias.at[tensor_row(slot, output_row)];
    if (GATE_ACTIVATION == UNGATED) result = activate_alone(ACTIVATION, result);
    if (GATE_ACTIVATION == STORED_GATE) result = activate(ACTIVATION, stored.at[0], result);
    if (GATE_ACTIVATION == FUSED) {
        if (HAS_SECOND_BIAS) second_result += second_bias.at[second_row(slot, output_row)];
        result = activate(ACTIVATION, result, second_result);
    }
    stored.at[0] = result;
}
