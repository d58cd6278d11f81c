// A state whose columns are shared by the invocations of a workgroup: each keeps a slice of one column in registers.
//
// The including shader declares `state`, the address of the op's values in slot 0, and `slot_len`. The stored layout is
// [head, block of 16 columns, STATE_ROWS, 16].

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;   // COLUMNS * SLICES
layout(constant_id = 1) const uint STATE_ROWS = 128;
layout(constant_id = 2) const uint SLICES = 8;

const uint COLUMNS = 32;
const uint BLOCK_COLUMNS = 16;
const uint VALUES = STATE_ROWS / SLICES;
const uint ROWS = 8;                       // of a step that are loaded together

shared float outputs[ROWS * WORKGROUP_SIZE];   // the part of each invocation of the outputs of some rows

uint lane = gl_LocalInvocationID.x;
uint slice = lane / COLUMNS;
uint column = lane % COLUMNS;
uint head;
uint first_column;
uint blocks;

float held[VALUES]; // the slice

// Finds the head and columns of this workgroup; `width` is that of a head.
void find_columns(uint width) {
    uint groups = (width + COLUMNS - 1) / COLUMNS;
    head = gl_WorkGroupID.x / groups;
    first_column = gl_WorkGroupID.x % groups * COLUMNS;
    blocks = (width + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
}

// The place of the first value of this invocation's slice in a slot; the next one is BLOCK_COLUMNS further.
uint place() {
    uint own = first_column + column;
    return ((head * blocks + own / BLOCK_COLUMNS) * STATE_ROWS + slice * VALUES) * BLOCK_COLUMNS + own % BLOCK_COLUMNS;
}

// Whether the column exists in the stored state, which has whole blocks.
bool is_stored() {
    return first_column + column < blocks * BLOCK_COLUMNS;
}

void load_state(uint slot) {
    [[unroll]] for (uint i = 0; i < VALUES; i++) held[i] = 0.0;
    if (slot == NO_SLOT || !is_stored()) return;
    Floats stored = values_of_slot(state, slot_len, slot);
    [[unroll]] for (uint i = 0; i < VALUES; i++) held[i] = stored.at[place() + i * BLOCK_COLUMNS];
}

void store_state(uint slot) {
    if (slot == NO_SLOT || !is_stored()) return;
    Floats stored = values_of_slot(state, slot_len, slot);
    [[unroll]] for (uint i = 0; i < VALUES; i++) stored.at[place() + i * BLOCK_COLUMNS] = held[i];
}

// The sum of the parts of an output: `index` counts the columns of the loaded rows.
float output_sum(uint index) {
    float sum = 0.0;
    for (uint part = 0; part < SLICES; part++) {
        sum += outputs[index / COLUMNS * WORKGROUP_SIZE + part * COLUMNS + index % COLUMNS];
    }
    return sum;
}
