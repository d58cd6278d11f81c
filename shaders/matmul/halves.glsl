// x in float16, as written by `halves.comp`: blocks of 16 rows. A block has 16 rows of K columns, one after the other, for
// each K columns; then the divisors of its rows. So matrices of K columns are in consecutive memory.

layout(constant_id = 8) const uint K = 16;

const uint BLOCK_ROWS = 16;
const uint RUN_BYTES = 64;
const uint OCTETS_OF_K = K / 8;   // eight columns, 16 bytes

// The block that contains a row.
uint64_t block_of_halves(uint64_t halves, uint row, uint runs) {
    return halves + uint64_t(row / BLOCK_ROWS) * (BLOCK_ROWS * (runs * RUN_BYTES + 4));
}

// Eight columns of a row.
WordQuads octet_of_x(uint64_t halves, uint row, uint octet, uint runs) {
    uint index = (octet / OCTETS_OF_K * BLOCK_ROWS + row % BLOCK_ROWS) * OCTETS_OF_K + octet % OCTETS_OF_K;
    return WordQuads(block_of_halves(halves, row, runs) + index * 16);
}

Floats divisor_of_halves(uint64_t halves, uint row, uint runs) {
    return Floats(block_of_halves(halves, row, runs) + BLOCK_ROWS * runs * RUN_BYTES + row % BLOCK_ROWS * 4);
}
