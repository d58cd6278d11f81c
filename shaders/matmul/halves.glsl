// x in float16, as written by `halves.comp`: one record per row, which has whole runs of 64 bytes and then another 64
// bytes with the divisor of the row.

const uint RUN_BYTES = 64;

uint64_t row_of_halves(uint64_t halves, uint row, uint runs) {
    return halves + uint64_t(row) * (runs + 1) * RUN_BYTES;
}
