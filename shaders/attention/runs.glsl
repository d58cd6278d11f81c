// The rows of a workgroup. Consecutive rows of one sequence are a run. With ALONE, runs of one row are handled
// separately and numbered by their run.

layout(constant_id = 4) const bool ALONE = false;

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
