// How many positions a row sees that sees only selected ones: `Selection` in selection.rs.
//
// The including shader declares SELECTED, the positions of a pool or 0, and `most_selected`.

uint count_visible(uint seen) {
    if (SELECTED == 0 || seen <= most_selected) return seen;
    return most_selected + 1 - SELECTED + seen % max(SELECTED, 1);
}
