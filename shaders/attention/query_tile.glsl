// The queries of a tile: HEADS heads of one KV head in ROWS consecutive rows of one sequence, row after row. QUERIES is
// the most of a tile.

const uint ROWS = QUERIES / HEADS;

// The work of the workgroup.
uint first_row;
uint rows;
uint first_position;
uint kv_head;
uint first_head;
uint heads;
uint table_start;
uint first_seen;       // of the positions that any query sees
uint end_seen;

// Finds the rows of a tile, if it has any. The tiles of a run of rows of one sequence start at (its first row) / ROWS +
// (its index), which leaves enough indices for the tiles of all earlier runs. With ALONE, runs of one row have no tile.
bool find_rows(uint tile) {
    uint run = 0;
    uint end = step.runs;
    while (end - run > 1) {
        uint middle = (run + end) / 2;
        if (step.run_starts.at[middle] / ROWS + middle <= tile) run = middle; else end = middle;
    }
    uint start = step.run_starts.at[run];
    end = run_end(step, run);
    first_row = start + (tile - (start / ROWS + run)) * ROWS;
    if (first_row >= end || ALONE && end == start + 1) return false;
    rows = min(ROWS, end - first_row);
    return true;
}

bool is_query(uint query) {
    return query / HEADS < rows && query % HEADS < heads;
}

uint row_of(uint query) {
    return first_row + query / HEADS;
}

uint position_of(uint query) {
    return first_position + query / HEADS;
}

uint head_of(uint query) {
    return first_head + query % HEADS;
}

// Finds the work of the workgroup, if it has any.
bool find_tile(uint tile) {
    uint group = n_heads / n_kv_heads;
    uint tiles = (group + HEADS - 1) / HEADS;
    kv_head = gl_WorkGroupID.x / tiles;
    first_head = kv_head * group + gl_WorkGroupID.x % tiles * HEADS;
    heads = min(HEADS, (kv_head + 1) * group - first_head);
    if (step.runs == 0 || !find_rows(tile)) return false;
    first_position = step.positions.at[first_row];
    first_seen = seen_by(step, first_row, window, kind_of_window).x;
    end_seen = seen_by(step, first_row + rows - 1, window, kind_of_window).y;
    table_start = table_start_of(step, first_row);
    return true;
}
