// The rows of a workgroup, and what they see. Consecutive rows of one sequence are a run. With ALONE, runs of one row are
// handled separately and numbered by their run. With LATER, a row also sees the rows of its run after it. Rows may also see
// each other, or be a canvas: see `Sight`.

layout(constant_id = 4) const bool ALONE = false;
layout(constant_id = 5) const bool LATER = false;
layout(constant_id = 10) const uint EACH_OTHER = 0; // the value of `EachOther`

const uint EACH_OTHER_ALL = 0;
const uint EACH_OTHER_BEFORE = 2;

uint run_end(Step step, uint run) {
    return run + 1 < step.runs ? step.run_starts.at[run + 1] : step.rows;
}

// Finds the row with this number, if there is one.
bool find_row(Step step, uint number, out uint row) {
    row = number;
    if (!ALONE) return row < step.rows;
    if (number >= step.runs) return false;
    row = step.run_starts.at[number];
    return run_end(step, number) == row + 1;
}

// The end of the run of a row.
uint end_of_run(Step step, uint row) {
    uint run = 0;
    uint end = step.runs;
    while (end - run > 1) {
        uint middle = (run + end) / 2;
        if (step.run_starts.at[middle] <= row) run = middle; else end = middle;
    }
    return run_end(step, run);
}

// The kinds of windows, as `Window` has them. 0: none.
const uint WINDOW_LAST = 1;
const uint WINDOW_CHUNK = 2;
const uint WINDOW_FROM = 3;
const uint WINDOW_BEFORE = 4;

// The first position that a row at `position` sees.
uint first_in_sight(uint position, uint window, uint kind) {
    if (kind == WINDOW_CHUNK) return position - position % window;
    if (kind == WINDOW_FROM) return position < window ? 0 : window;
    return kind == WINDOW_LAST && position + 1 > window ? position + 1 - window : 0;
}

// The first position that a row sees, and the one after the last. With LATER, a window extends as far ahead as back.
uvec2 seen_by(Step step, uint row, uint window, uint kind) {
    uint position = step.positions.at[row];
    uint sequence = step.sequences.at[row];
    uint sight = step.sights.at[2 * sequence];
    uint start = step.sights.at[2 * sequence + 1];
    uint end = kind == WINDOW_BEFORE ? window : ~0u;
    uint first = first_in_sight(sight == SIGHT_CANVAS ? start : position, window, kind);
    if (sight == SIGHT_EACH_OTHER && EACH_OTHER == EACH_OTHER_ALL) first = min(first, start);
    if (sight == SIGHT_EACH_OTHER && EACH_OTHER == EACH_OTHER_BEFORE) sight = SIGHT_BEFORE;
    if (!LATER && sight == SIGHT_BEFORE) return uvec2(first, min(position + 1, end));
    uint after = min(position + end_of_run(step, row) - row, end);
    return uvec2(first, kind == WINDOW_LAST && sight == SIGHT_BEFORE ? min(after, position + window) : after);
}
