// The cells of the cache that a row sees which sees not only adjacent positions: selected positions, or entries of pools and then
// the positions of a window.
//
// The including shader declares SELECTED, the push constants of `attention/attend.glsl`, and the row.

layout(constant_id = 13) const uint LISTS = 1; // of a row: as many groups of heads have lists of selected positions of their own

const bool LISTS_CELLS = SELECTED > 0 || POOL > 0;

// Marks the slot of an entry.
const uint ENTRY = 0x80000000u;

uint window_start; // the first position of the window of the row

struct Cell {
    uint position;   // of an entry the last one of its pool
    bool is_entry;
};

// The number of the list of selected positions of the row and its heads.
uint own_list() {
    return LISTS == 1 ? row : row * LISTS + kv_head * LISTS / n_kv_heads;
}

// The cell at `index` of those that the row sees.
Cell cell_at(uint index) {
    uint entries = count_entries(own_position + 1);
    bool is_entry = index < entries;
    bool is_listed = SELECTED > 0 && (POOL == 0 || is_entry);
    uint listed = is_listed ? uint(Floats(selected).at[own_list() * most_selected + index]) : index;
    if (POOL == 0) return Cell(listed, false);
    if (is_entry) return Cell((listed + 1) * POOL - 1, true);
    return Cell(window_start + index - entries, false);
}

// The slot of a cell, counted over all blocks of the cache.
uint slot_of(Cell cell) {
    uint block = step.tables.at[table_start + cell.position / BLOCK_TOKENS];
    uint slot = cell.position % BLOCK_TOKENS;
    return cell.is_entry ? ENTRY | (block * ENTRY_SLOTS + entry_slot(slot)) : block * BLOCK_TOKENS + slot;
}

// Where a slot is in the cache.
struct Place {
    uint64_t record;
    uint slots;      // of the record
    uint slot;
};

// The place of the keys or of the values of a slot. Values that are part of keys have the same.
Place place_of(bool of_keys, uint slot) {
    uint stride = of_keys ? KEY_STRIDE : VALUE_STRIDE;
    if (POOL > 0 && (slot & ENTRY) != 0) {
        uint entry = slot & ~ENTRY;
        uint64_t record = values + uint64_t(entry / ENTRY_SLOTS) * record_bytes(stride, ENTRY_SLOTS);
        return Place(record, ENTRY_SLOTS, entry % ENTRY_SLOTS);
    }
    uint64_t plane = of_keys || POOL > 0 ? keys : values;
    uint64_t record = plane + (uint64_t(slot / BLOCK_TOKENS) * n_kv_heads + kv_head) * record_bytes(stride, BLOCK_TOKENS);
    return Place(record, BLOCK_TOKENS, slot % BLOCK_TOKENS);
}
