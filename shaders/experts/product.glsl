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
layout(constant_id = 35) const bool HAS_FACTOR = false;
layout(constant_id = 36) const bool HAS_SECOND_FACTOR = false;

const uint STORED_GATE = 1;  // the product of gate is stored at the output
const uint FUSED = 2;        // `matrix` is gate and `second` is up
const uint UNGATED = 3;      // `matrix` is up, and there is no gate

const uint MATRICES = GATE_ACTIVATION == FUSED ? 2 : 1;
const uint RUNS_OF_ROW = (COLUMNS + 31) / 32;

layout(push_constant, scalar) uniform Push {
    Matrix matrix;
    Matrix second;
    uint64_t x;
    uint64_t y;
    uint64_t routes;
    uint64_t blocks;      // 0 if each route is computed by itself
    Floats table;         // for each slot, EXPERT_STRIDE biases if HAS_BIAS, then a factor if HAS_FACTOR
    Floats second_table;
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
    return load_run(matrix, uint64_t(tensor_row(slot, output_row)) * RUNS_OF_ROW + index);
}

Run load_second(uint slot, uint output_row, uint index) {
    return load_run(second, uint64_t(second_row(slot, output_row)) * RUNS_OF_ROW + index);
}

// Multiplies a product by the factor of its expert. `width` is the number of values of a slot in the table.
float times_factor(Floats table, uint width, uint slot, float result) {
    precise float scaled = result * table.at[slot * width + width - 1];
    return scaled;
}

// Applies the factor, the bias and the activation, and stores the result. `second_result` is the product with the second
// matrix.
void store_result(uint slot, uint route, uint output_row, float result, float second_result) {
    Floats stored = Floats(y + (uint64_t(route) * EXPERT_OUTPUTS + output_row) * 4);
    const uint width = (HAS_BIAS ? EXPERT_STRIDE : 0) + (HAS_FACTOR ? 1 : 0);
    if (HAS_FACTOR) result = times_factor(table, width, slot, result);
    if (HAS_BIAS) result += table.at[slot * width + FIRST + min(output_row, EXPERT_OUTPUTS - 1)];
    if (GATE_ACTIVATION == UNGATED) result = activate_alone(ACTIVATION, result);
    if (GATE_ACTIVATION == STORED_GATE) result = activate(ACTIVATION, stored.at[0], result);
    if (GATE_ACTIVATION == FUSED) {
        const uint width = (HAS_SECOND_BIAS ? SECOND_STRIDE : 0) + (HAS_SECOND_FACTOR ? 1 : 0);
        if (HAS_SECOND_FACTOR) second_result = times_factor(second_table, width, slot, second_result);
        if (HAS_SECOND_BIAS) {
            second_result += second_table.at[slot * width + SECOND_FIRST + min(output_row, EXPERT_OUTPUTS - 1)];
        }
        result = activate(ACTIVATION, result, second_result);
    }
    stored.at[0] = result;
}
