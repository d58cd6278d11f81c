// x in float16, as written by `halves.comp`: blocks of 16 rows. A block has 16 times 64 bytes for each run of columns, one
// after the other, and then the divisors of its rows.

#include <gpu/half_range.glsl>

const uint RUN_BYTES = 64;
const uint BLOCK_ROWS = 16;
const uint BLOCK_RUN_BYTES = BLOCK_ROWS * RUN_BYTES;

// The block that contains a row.
uint64_t block_of_halves(uint64_t halves, uint row, uint runs) {
    return halves + uint64_t(row / BLOCK_ROWS) * (runs * BLOCK_RUN_BYTES + BLOCK_ROWS * 4);
}

// A run of a row.
uint64_t run_of_halves(uint64_t halves, uint row, uint run, uint runs) {
    return block_of_halves(halves, row, runs) + (run * BLOCK_ROWS + row % BLOCK_ROWS) * RUN_BYTES;
}

Floats divisor_of_halves(uint64_t halves, uint row, uint runs) {
    return Floats(block_of_halves(halves, row, runs) + runs * BLOCK_RUN_BYTES + row % BLOCK_ROWS * 4);
}

// Eight columns, rounded. Of each quad the first and third are next to each other, and the second and fourth: in this order
// codes of a byte are decoded with the fewest instructions. Weights have the same order, so the products are the same.
uvec4 pack_columns(vec4 first, vec4 second) {
    return pack_halves(first.xzyw, second.xzyw);
}
