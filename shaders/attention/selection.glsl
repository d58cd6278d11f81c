// What a row sees that does not see all positions up to its own: `Selection` in selection.rs, and the entries of pools.
//
// The including shader declares SELECTED, the positions of a pool or 0, and `most_selected`.

#include <attention/pools.glsl>

layout(constant_id = 12) const uint OWN_POOL = 0; // 1: the pool of a row is selected in any case, whole or not

// How many a row that sees the first `seen` positions sees of them.
uint count_visible(uint seen) {
    if (SELECTED == 0 || seen <= most_selected) return seen;
    return most_selected + 1 - SELECTED + (seen - OWN_POOL) % max(SELECTED, 1);
}

// The entries of pools that a row sees whose position is the last of the first `seen` ones.
uint count_entries(uint seen) {
    if (POOL == 0) return 0;
    uint pools = seen / max(POOL, 1);
    return most_selected > 0 ? min(pools, most_selected) : pools;
}

// The positions that a row sees, or the indices of its cells: entries first, then the positions of its window.
uvec2 cells_seen(uvec2 positions) {
    if (POOL > 0) return uvec2(0, count_entries(positions.y) + positions.y - positions.x);
    return uvec2(positions.x, count_visible(positions.y));
}
