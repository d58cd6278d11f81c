// The work of a workgroup that computes one row for some heads of one KV head.

uint row;
uint own_position;
uint kv_head;
uint first_head;
uint heads;
uint table_start;

#include <attention/cells.glsl>

// Finds the work, if there is any: the positions or the indices of cells that the row sees, with SPLIT those
// of its piece, and the last of their pieces.
bool find_work(out uvec2 range, out uint piece) {
    uint group = n_heads / n_kv_heads;
    uint tiles = (group + HEADS - 1) / HEADS;
    kv_head = gl_WorkGroupID.x / tiles;
    first_head = kv_head * group + gl_WorkGroupID.x % tiles * HEADS;
    heads = min(HEADS, (kv_head + 1) * group - first_head);
    if (!find_row(step, gl_WorkGroupID.y, row)) return false;
    own_position = step.positions.at[row];
    table_start = table_start_of(step, row);
    range = seen_by(step, row, window, kind_of_window);
    window_start = range.x;
    range = cells_seen(range);
    piece = (range.y - 1) / PIECE_TOKENS;
    if (!SPLIT) return true;
    piece = gl_WorkGroupID.z;
    range = clamp(range, piece * PIECE_TOKENS, (piece + 1) * PIECE_TOKENS);
    return range.x < range.y;
}
