// Routes, as written by `route.comp` or the host: [rows, 2 TOP_K], for each row the numbers of its experts, then their
// weights. With USES_SLOTS they are [rows, 3 TOP_K]: the slots of the experts in the tensors follow. Otherwise the slot
// of an expert is its number. Routes are numbered through all rows: row * TOP_K + k. An expert with a negative number
// is computed elsewhere.

layout(constant_id = 20) const uint N_EXPERTS = 1;
layout(constant_id = 21) const uint TOP_K = 1;
layout(constant_id = 32) const bool USES_SLOTS = false;

// One value of a route: its expert (0), weight (1) or slot (2).
float route_value(uint64_t routes, uint route, uint which) {
    return Floats(routes).at[(route / TOP_K * (USES_SLOTS ? 3 : 2) + which) * TOP_K + route % TOP_K];
}

// The expert of a route; returns `false` if it is computed elsewhere.
bool find_expert(uint64_t routes, uint route, out uint expert) {
    float number = route_value(routes, route, 0);
    expert = uint(max(number, 0.0));
    return number >= 0.0 && number < float(N_EXPERTS);
}

float weight_of(uint64_t routes, uint route) {
    return route_value(routes, route, 1);
}

// The slot of the expert of a route in the tensors.
uint slot_of(uint64_t routes, uint route, uint expert) {
    return USES_SLOTS ? uint(max(route_value(routes, route, 2), 0.0)) : expert;
}

// The number of rows that a dispatch computes: those from `first` on, at most `most`.
uint rows_of_chunk(Step step, uint row_kind, uint first, uint most) {
    uint rows = count_rows(step, row_kind);
    return min(rows - min(rows, first), most);
}
