// The change of a projection for a row: see `Target` in `target.rs`.

// Outputs of a strip of B.
const uint STRIP = 16;

struct Change {
    uint rank;       // 0 for a row whose projection is not changed
    float scale;     // of the adapter, times the factor of the sequence
    uint64_t a;      // [rank, columns]
    uint64_t b;      // [outputs / STRIP, rank, STRIP]
};

// The row of the step that is row `row` of a dispatch; `kind` is that of `RowCount`.
uint row_of_step(Step step, uint kind, uint row) {
    return kind == 0 ? row : kind == 1 ? step.selection.at[row] : step.hidden_selection.at[row];
}

// The change for a row of the step. `slots` are the slots of the projection, of `slot_bytes` bytes each.
Change change_of(Step step, uint row, uint64_t slots, uint slot_bytes, uint columns) {
    uint sequence = step.sequences.at[row];
    uint slot = step.adapters.at[2 * sequence];
    if (slot == NO_ADAPTER) return Change(0, 0.0, slots, slots);
    uint64_t start = slots + uint64_t(slot) * slot_bytes;
    Words header = Words(start);
    uint rank = header.at[0];
    float scale = uintBitsToFloat(step.adapters.at[2 * sequence + 1]) * uintBitsToFloat(header.at[1]);
    uint64_t a = start + 16;
    return Change(rank, scale, a, a + uint64_t(rank) * columns * 4);
}

// B of an output and a rank.
float b_value(Change change, uint o, uint k) {
    return Floats(change.b + uint64_t(o / STRIP) * change.rank * STRIP * 4).at[k * STRIP + o % STRIP];
}
