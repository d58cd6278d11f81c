// Routes, as `route.comp` leaves them or whoever decides otherwise: [rows, 2 TOP_K], for each row the numbers of its experts, then
// their weights; with PLACED [rows, 3 TOP_K], and then their places in the tensors, which elsewhere are their numbers. A *route*
// is counted through all rows: row * TOP_K + slot. A negative expert is computed elsewhere.

layout(constant_id = 20) const uint N_EXPERTS = 1;
layout(constant_id = 21) const uint TOP_K = 1;
layout(constant_id = 32) const bool PLACED = false;

// One of a route's values: its expert, its weight, its place.
float route_value(uint64_t routes, uint route, uint which) {
    return Floats(routes).at[(route / TOP_K * (PLACED ? 3 : 2) + which) * TOP_K + route % TOP_K];
}

// Whether an expert here computes a route, and which.
bool find_expert(uint64_t routes, uint route, out uint expert) {
    float number = route_value(routes, route, 0);
    expert = uint(max(number, 0.0));
    return number >= 0.0 && number < float(N_EXPERTS);
}

float weight_of(uint64_t routes, uint route) {
    return route_value(routes, route, 1);
}

// Where the tensors have the expert of a route.
uint place_of(uint64_t routes, uint route, uint expert) {
    return PLACED ? uint(max(route_value(routes, route, 2), 0.0)) : expert;
}

// The rows that a dispatch computes: those from `first` on, and no more than `most`.
uint rows_of_part(Step step, uint row_kind, uint first, uint most) {
    uint rows = count_rows(step, row_kind);
    return min(rows - min(rows, first), most);
}
