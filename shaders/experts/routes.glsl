// Routes, as `route.comp` leaves them or whoever decides otherwise: [rows, 2 TOP_K], for each row the numbers of its experts, then
// their weights. A *route* is counted through all rows: row * TOP_K + slot.
//
// The numbers are places in the tensors that a dispatch is given. To have only some experts here, in whatever order, it
// takes another number in the routes, and -1 for the others.

layout(constant_id = 20) const uint N_EXPERTS = 1;
layout(constant_id = 21) const uint TOP_K = 1;

// Whether an expert here computes a route, and which.
bool find_expert(uint64_t routes, uint route, out uint expert) {
    float number = Floats(routes).at[route / TOP_K * 2 * TOP_K + route % TOP_K];
    expert = uint(max(number, 0.0));
    return number >= 0.0 && number < float(N_EXPERTS);
}

float weight_of(uint64_t routes, uint route) {
    return Floats(routes).at[route / TOP_K * 2 * TOP_K + TOP_K + route % TOP_K];
}

// The rows that a dispatch computes: those from `first` on, and no more than `most`.
uint rows_of_part(Step step, uint row_kind, uint first, uint most) {
    uint rows = count_rows(step, row_kind);
    return min(rows - min(rows, first), most);
}
