// The rows of a workgroup, and what they see. Consecutive rows of one sequence are a run. With ALONE, runs of one row are
// handled separately and numbered by their run. With LATER, a row also sees the rows of its run after it.

layout(constant_id = 4) const bool ALONE = false;
layout(constant_id = 5) const bool LATER = false;

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

// The end of the positions that a row sees. With LATER, a window extends as far ahead as back.
uint end_in_sight(Step step, uint row, uint window) {
    uint position = step.positions.at[row];
    if (!LATER) return position + 1;
    uint run = 0;
    uint end = step.runs;
    while (end - run > 1) {
        uint middle = (run + end) / 2;
        if (step.run_starts.at[middle] <= row) run = middle; else end = middle;
    }
    uint after = position + run_end(step, run) - row;
    return window > 0 ? min(after, position + window) : after;
}
