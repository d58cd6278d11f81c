// The rows of each sequence of a step, with the slots of their state.

// The row after the last one of a run.
uint run_end(Step step, uint run) {
    return run + 1 < step.runs ? step.run_starts.at[run + 1] : step.rows;
}

// The slot with the state before the first row of a run, or NO_SLOT.
uint slot_before(Step step, uint first) {
    return step.state_from.at[step.sequences.at[first]];
}

// The values of an op in a slot; `state` is the address of those in slot 0.
Floats values_of_slot(uint64_t state, uint slot_len, uint slot) {
    return Floats(state + uint64_t(slot) * slot_len * 4);
}
