// x in float16, as `halves.comp` leaves it: a record for each row, whole runs of 64 bytes and then, in as many, what the row was
// divided by.

const uint RUN_BYTES = 64;

uint64_t row_of_halves(uint64_t halves, uint row, uint runs) {
    return halves + uint64_t(row) * (runs + 1) * RUN_BYTES;
}
